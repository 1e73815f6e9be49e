"""The group of all commands. It imports a command only when that is run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from effectflow.cli.commands import COMMANDS, Row


class Commands(TyperGroup):
    """A group of commands. It turns what a command raises into a message and an exit code."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and _loaded(str(command.name)), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.Exit:
            raise
        except Exception as error:
            # Imported late: it takes longer than `--help`.
            from effectflow.cli.options import report

            code = report(error)
            if code is None:
                raise
        raise typer.Exit(code)


def make_group(commands: Mapping[str, Row]) -> typer.Typer:
    """Return a group of these commands by their names."""
    group = typer.Typer(
        name="effectflow",
        cls=Commands,
        help="Durable workflows: run them, watch them, and resume them after a crash.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    group.callback()(_options)
    for name, row in commands.items():
        group.command(name, help=row.summary, rich_help_panel=row.panel)(_not_loaded)
    return group


def _not_loaded() -> None:
    """Stand for a command in the help of the group."""


@cache
def _loaded(name: str) -> Any:
    """Return a command with its options."""
    row = COMMANDS[name]
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    module, _, name_there = row.home.partition(":")
    function = getattr(import_module(f"effectflow.cli.{module}"), name_there)
    # Typer keeps the line breaks of the source.
    paragraphs = str(inspect.getdoc(function)).split("\n\n")
    text = "\n\n".join(" ".join(one.split()) for one in paragraphs)
    alone.command(name, help=text, epilog=f"Example: effectflow {row.example}")(function)
    return typer.main.get_command(alone)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        # Imported late: it takes 10 ms.
        from importlib.metadata import version

        typer.echo(f"effectflow {version('effectflow')}")
        raise typer.Exit


def _options(
    show: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Durable workflows: run them, watch them, and resume them after a crash."""
