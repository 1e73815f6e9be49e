"""Open the store that a command names, and end the command where something is wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import anyio
import typer
from rich.console import Console

from effectflow.checkpoint import CheckpointError, CheckpointStore, RunNotFound
from effectflow.cli.exits import ExitCode
from effectflow.cli.keys import Keys, read_keys
from effectflow.cli.loading import BadUse
from effectflow.stores import open_store

__all__ = ["bad_use", "check_store", "fail", "given_keys", "read_store", "say", "store_named"]

A = TypeVar("A")


def read_store(
    store: str, read: Callable[[CheckpointStore], Awaitable[A]], *, must_exist: bool = True
) -> A:
    """What `read(store)` gives; a checkpoint error ends the command."""

    opened = store_named(store)
    place = getattr(opened, "path", None) or getattr(opened, "directory", None)
    if must_exist and isinstance(place, Path) and not place.exists():
        fail(
            ExitCode.BAD_USE,
            f"there is no store {place}; `effectflow demo` and `effectflow run` make one",
        )

    async def main() -> A:
        async with opened as found:
            return await read(found)

    try:
        return anyio.run(main)
    except (RunNotFound, BadUse) as error:
        fail(ExitCode.BAD_USE, str(error))
    except CheckpointError as error:
        fail(ExitCode.CHECKPOINT_ERROR, str(error))


def store_named(url: str) -> CheckpointStore:
    """The store that a URL names, yet to be opened."""
    try:
        return open_store(url)
    except (ValueError, ModuleNotFoundError) as error:
        fail(ExitCode.BAD_USE, str(error))


def check_store(url: str) -> None:
    """End the command if a URL names no store, before anything is said or done."""
    store_named(url)


class bad_use:  # noqa: N801
    """Turns BadUse into a message and the exit code for it."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, BadUse):
            fail(ExitCode.BAD_USE, str(error))


def fail(code: ExitCode, message: str) -> NoReturn:
    """End the command with this message and exit code."""
    Console(stderr=True).print(
        f"effectflow: {message}", highlight=False, markup=False, soft_wrap=True
    )
    raise typer.Exit(code)


def given_keys(key_file: Path | None, encryption_keys: Path | None) -> Keys:
    """The keys in the files that the command was given."""
    with bad_use():
        return read_keys(key_file, encryption_keys)


def say(text: str) -> None:
    """Print a line as it is: it may hold what rich would take for markup."""
    Console().print(text, highlight=False, markup=False, soft_wrap=True)
