"""The `effectflow` command: its entry point, and the table of its commands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def main() -> None:
    """Run the command line; end the process with an `ExitCode`."""
    try:
        app = make_app()
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich", "cloudpickle"):
            raise
        sys.exit(
            f"The command line needs {missing.name}, which is not installed. "
            "Install it with: pip install 'effectflow[cli]'"
        )
    app()


def make_app() -> typer.Typer:
    """Return the commands by their names."""
    import typer

    from effectflow.cli import drive, messages, stored_runs, work
    from effectflow.cli.options import Commands

    app = typer.Typer(
        name="effectflow",
        cls=Commands,
        help="Durable workflows: run them, watch them, and resume them after a crash.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    for name, command, example in (
        ("demo", drive.demo, "demo ~/projects/shop --report shop"),
        ("run", drive.run, """run shop.orders:checkout --input '{"cart": 7}'"""),
        ("resume", drive.resume, "resume --latest"),
        ("worker", work.worker, "worker shop.service:app --concurrency 20"),
        ("cancel", messages.cancel, "cancel order-7 --app shop.service:app"),
        (
            "send",
            messages.send,
            """send order-7 shop.orders:approval '{"by": "ann"}' --app shop.service:app""",
        ),
        ("dead-letters", drive.dead_letters, "dead-letters words --retry emma/50 --app books"),
        ("list", stored_runs.list_runs, "list --workflow census"),
        ("show", stored_runs.show, "show census-1f0c7a2e9b3d"),
        ("history", stored_runs.history, "history census-1f0c7a2e9b3d"),
        ("verify", stored_runs.verify, "verify --store file:./runs"),
        ("repair", stored_runs.repair, "repair census-1f0c7a2e9b3d --aside ./damaged"),
        ("plan", stored_runs.plan, "plan census-1f0c7a2e9b3d"),
        ("export", stored_runs.export_runs, "export census-1f0c7a2e9b3d --output run.jsonl"),
        ("import", stored_runs.import_runs, "import run.jsonl --store file:./runs"),
    ):
        app.command(name, epilog=f"Example: effectflow {example}")(command)
    return app
