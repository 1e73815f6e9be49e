"""The commands of `effectflow`, by their names."""

from __future__ import annotations

import typer

from effectflow.cli.looking import history, list_runs, plan, show, verify
from effectflow.cli.moving import export_runs, import_runs
from effectflow.cli.running import demo, resume, run

__all__ = ["app"]

app = typer.Typer(
    name="effectflow",
    help="Durable workflows: run them, watch them, resume them after a crash.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

app.command(epilog="Example: effectflow demo ~/projects/shop --report shop")(demo)
app.command(epilog="""Example: effectflow run shop.orders:checkout --input '{"cart": 7}'""")(run)
app.command(epilog="Example: effectflow resume --latest")(resume)
app.command("list", epilog="Example: effectflow list --workflow census")(list_runs)
app.command(epilog="Example: effectflow show census-1f0c7a2e")(show)
app.command(epilog="Example: effectflow history census-1f0c7a2e")(history)
app.command(epilog="Example: effectflow verify --store file:./runs")(verify)
app.command(epilog="Example: effectflow plan census-1f0c7a2e")(plan)
app.command("export", epilog="Example: effectflow export census-1f0c7a2e --output run.jsonl")(
    export_runs
)
app.command("import", epilog="Example: effectflow import run.jsonl --store file:./runs")(
    import_runs
)
