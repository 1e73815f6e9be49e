"""The `effectflow` command: its entry point, and the table of its commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer


def main() -> None:
    """Run the command line; end the process with an `ExitCode`."""
    try:
        make_app()()
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich", "cloudpickle", "pydantic"):
            raise
        sys.exit(
            f"The command line needs {missing.name}, which is not installed. "
            "Install it with: pip install 'effectflow[cli]'"
        )


def make_app() -> typer.Typer:
    """Return the commands by their names."""
    import typer

    from effectflow.cli import (
        dead_letters,
        history,
        list_runs,
        run,
        run_worker,
        send,
        show,
        show_plan,
        transfer,
        verify,
    )
    from effectflow.cli.options import Commands

    app = typer.Typer(
        name="effectflow",
        cls=Commands,
        help="Durable workflows: run them, watch them, and resume them after a crash.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(_options_of(typer))
    for name, command, example in (
        ("demo", run.demo, "demo ~/projects/shop --report shop"),
        ("run", run.run, """run shop.orders:checkout --input '{"cart": 7}'"""),
        ("resume", run.resume, "resume --latest"),
        ("worker", run_worker.worker, "worker shop.service:app --limit 20"),
        ("cancel", send.cancel, "cancel order-7 --app shop.service:app"),
        (
            "send",
            send.send,
            """send order-7 shop.orders:approval '{"by": "ann"}' --app shop.service:app""",
        ),
        (
            "dead-letters",
            dead_letters.dead_letters,
            "dead-letters words --retry emma/50 --app books",
        ),
        ("list", list_runs.list_runs, "list --workflow census"),
        ("show", show.show, "show census-1f0c7a2e9b3d"),
        ("history", history.history, "history census-1f0c7a2e9b3d"),
        ("verify", verify.verify, "verify --store file:./runs"),
        ("repair", verify.repair, "repair census-1f0c7a2e9b3d --aside ./damaged"),
        ("plan", show_plan.plan, "plan census-1f0c7a2e9b3d"),
        ("export", transfer.export_runs, "export census-1f0c7a2e9b3d --output run.jsonl"),
        ("import", transfer.import_runs, "import run.jsonl --store file:./runs"),
    ):
        app.command(name, epilog=f"Example: effectflow {example}")(command)
    return app


def _options_of(typer: Any) -> Callable[..., None]:
    """Return the function with the options that come before a command."""

    def show_version(is_asked: bool) -> None:
        if is_asked:
            # Imported late: it takes 10 ms.
            from importlib.metadata import version

            typer.echo(f"effectflow {version('effectflow')}")
            raise typer.Exit

    option = typer.Option(
        False, "--version", callback=show_version, is_eager=True, help="Show the version and exit."
    )

    def options(show: bool = option) -> None:
        """Durable workflows: run them, watch them, and resume them after a crash."""

    return options
