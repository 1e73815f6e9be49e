"""How commands end: the exit codes, and the errors that lead to them."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from effectflow.checkpoint import CheckpointError, RunNotFound
from effectflow.cli.render import say

__all__ = ["BadUse", "Commands", "ExitCode"]


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    DONE = 0
    WORKFLOW_FAILED = 1
    BAD_USE = 2
    INTERRUPTED = 3
    CHECKPOINT_ERROR = 4


class BadUse(Exception):
    """The user gave a command something that it cannot work with. The message says what to do."""


class Commands(TyperGroup):
    """A group of commands that ends with a message and an exit code where a command raises."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (BadUse, RunNotFound) as error:
            code, message = ExitCode.BAD_USE, str(error)
        except CheckpointError as error:
            code, message = ExitCode.CHECKPOINT_ERROR, str(error)
        say(f"effectflow: {message}", Console(stderr=True))
        raise typer.Exit(code)
