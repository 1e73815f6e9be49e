"""The options that commands share, exit codes, and errors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from typer.core import TyperGroup

from effectflow.checkpoint import (
    CheckpointError,
    CheckpointStore,
    Encryption,
    RunEnded,
    RunNotFound,
    RunQuery,
    Seal,
)
from effectflow.cli.render import say
from effectflow.service.environment import BadEnvironment
from effectflow.stores import open_store

STORE = "sqlite:///effectflow.db"
"""The default of `StoreOption`."""

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="EFFECTFLOW_STORE",
        help="The store of the runs, such as runs.db or postgresql://host/name.",
    ),
]
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN_ID",
        show_default=False,
        help="The id of the run, as `effectflow list` shows it.",
    ),
]
LatestOption = Annotated[
    bool, typer.Option("--latest", help="Take the newest run instead of one by its id.")
]
LatestResumableOption = Annotated[
    bool, typer.Option("--latest", help="Take the newest run that can be resumed.")
]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        help="What defines the run's workflow: a MODULE, a MODULE:WORKFLOW, or the MODULE:APP of a "
        "service, which also says where its runs are.",
    ),
]
ServiceOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        help="The App that says where its runs are, instead of --store.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
# Keys are never arguments, because other users can see those.
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar="EFFECTFLOW_KEY_FILE",
        help="A file with the key that signs entries.",
        rich_help_panel="Keys",
    ),
]
EncryptionKeysOption = Annotated[
    Path | None,
    typer.Option(
        "--encryption-keys",
        envvar="EFFECTFLOW_ENCRYPTION_KEYS",
        help="A file with one line `ID HEX` for each key. New entries use the last key.",
        rich_help_panel="Keys",
    ),
]


class ExitCode(IntEnum):
    """The exit codes of all commands. A cancelled run counts as failed."""

    DONE = 0
    WORKFLOW_FAILED = 1
    BAD_USE = 2
    INTERRUPTED = 3
    CHECKPOINT_ERROR = 4


class BadUse(Exception):
    """The user called a command in a wrong way. The message says what to do."""


class Commands(TyperGroup):
    """A group of commands. It turns what a command raises into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (BadUse, BadEnvironment, RunEnded, RunNotFound) as error:
            code, message = ExitCode.BAD_USE, str(error)
        except CheckpointError as error:
            code, message = ExitCode.CHECKPOINT_ERROR, str(error)
        say(f"effectflow: {message}", Console(stderr=True))
        raise typer.Exit(code)


def store_at(url: str) -> CheckpointStore:
    """Return the store at a URL, not yet opened. Raise BadUse if the URL names no store."""
    try:
        return open_store(url)
    except (ValueError, ModuleNotFoundError) as error:
        raise BadUse(str(error)) from error


def check_choice(**choices: object) -> None:
    """Raise BadUse unless exactly one of these ways to choose runs is used."""
    if sum(given not in (None, False) for given in choices.values()) != 1:
        *others, last = [f"--{name}" if name != "run_id" else "a run id" for name in choices]
        raise BadUse(f"give either {', '.join(others)} or {last}")


async def chosen_run(store: CheckpointStore, run_id: str | None, *, resumable: bool = False) -> str:
    """Return the given id. Without one, return that of the newest run, or of the newest one to resume.

    Raise BadUse if there is none.
    """
    if run_id is not None:
        return run_id
    for newest in await store.find(RunQuery(resumable=resumable, limit=1)):
        return newest.run_id
    if resumable:
        raise BadUse("no run in this store can be resumed; `effectflow list` shows all runs")
    raise BadUse("this store has no runs")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a command.

    Attributes:
        seal: signs, encrypts and checks entries with these keys.
        options: the words that give another command the same keys.
    """

    seal: Seal
    options: tuple[str, ...]


def read_keys(key_file: Path | None, encryption_keys: Path | None) -> Keys:
    """Return the keys in these files. Raise BadUse for a file without one."""
    given = {"--key-file": key_file, "--encryption-keys": encryption_keys}
    options = [word for name, path in given.items() if path for word in (name, str(path))]
    seal = Seal(
        key=None if key_file is None else _read_signing_key(key_file),
        encryption=None if encryption_keys is None else _read_encryption(encryption_keys),
    )
    return Keys(seal, tuple(options))


def _read_signing_key(path: Path) -> bytes:
    """Return all bytes of a file, without the newline that ends a text file."""
    key = read_file(path, f"the key file {path}")
    if key.isascii():
        key = key.rstrip(b"\r\n")
    if len(key) < 16:
        raise BadUse(f"the key in {path} has {len(key)} bytes; it needs at least 16")
    return key


def _read_encryption(path: Path) -> Encryption:
    keys: dict[str, bytes] = {}
    try:
        for line in read_file(path, f"the key file {path}").decode().splitlines():
            if line.strip():
                name, digits = line.split()
                keys[name] = bytes.fromhex(digits)
        return Encryption(next(reversed(keys)), keys)
    except (ValueError, StopIteration):
        # The message must not quote the file, which may have part of a key.
        raise BadUse(
            f"{path} should have one line `ID HEX` for each key of 16, 24 or 32 bytes"
        ) from None
    except ModuleNotFoundError as error:
        raise BadUse(str(error)) from error


def read_file(path: Path, what: str) -> bytes:
    """Return the content of a file. Raise BadUse if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadUse(f"cannot read {what}: {error.strerror}") from error


def read_json(text: str, what: str) -> Any:
    """Return the JSON in `text`, or in the file that `@path` names. Raise BadUse for other text."""
    name = text.removeprefix("@")
    source = text.encode() if name == text else read_file(Path(name), f"the {what} file {name!r}")
    try:
        return orjson.loads(source)
    except orjson.JSONDecodeError as error:
        excerpt = error.doc[max(0, error.pos - 20) : error.pos + 20]
        raise BadUse(
            f"the {what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}, "
            f"near {excerpt!r}"
        ) from error
