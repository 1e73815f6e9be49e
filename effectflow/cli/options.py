"""The options that commands share, exit codes, and errors."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from effectflow.checkpoint import CheckpointError
from effectflow.cli.render import say
from effectflow.cli.suggestions import message_of

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
ByOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Who asks, for the journal: by default the user and the host."
    ),
]
EffectsOption = Annotated[
    bool, typer.Option("--effects", help="Run the effects between steps, too, to reach the step.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class ExitCode(IntEnum):
    """The exit codes of all commands. A cancelled run counts as failed."""

    DONE = 0
    WORKFLOW_FAILED = 1
    BAD_USE = 2
    INTERRUPTED = 3
    CHECKPOINT_ERROR = 4


class BadUse(Exception):
    """The user called a command in a wrong way. The message says what to do."""


def report(error: Exception) -> ExitCode | None:
    """Print the message of an error that a command may raise. Return the exit code; None for others."""
    # Imported late, because most commands need no environment.
    from effectflow.service.environment import BadEnvironment

    if isinstance(error, CheckpointError):
        code = ExitCode.CHECKPOINT_ERROR
    elif isinstance(error, BadUse | BadEnvironment):
        code = ExitCode.BAD_USE
    else:
        return None
    say(f"effectflow: {message_of(error)}", Console(stderr=True))
    return code


def check_choice(**choices: object) -> None:
    """Raise BadUse unless exactly one of these ways to choose runs is used."""
    if sum(given not in (None, False) for given in choices.values()) != 1:
        *others, last = [f"--{name}" if name != "run_id" else "a run id" for name in choices]
        raise BadUse(f"give either {', '.join(others)} or {last}")


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
