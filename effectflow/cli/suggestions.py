"""The commands that messages suggest, with the options that make them find the same runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace

from effectflow.checkpoint import (
    CheckpointError,
    CorruptCheckpoint,
    DefinitionChanged,
    OutcomeUnknown,
    RunBusy,
    RunEnded,
    RunNotFound,
)
from effectflow.checkpoint.errors import after_damage


@dataclass(frozen=True, slots=True)
class RunLocation:
    """Where the runs of this command are, by its options.

    Attributes:
        options: the options that name the store and its keys.
        app: the MODULE:APP of the App that says where they are; None without one.
        module: the module with the workflow, if `app` is None; None without one.
        checkpoint: the file with the run, which `resume` takes instead of a run id; None without one.
    """

    options: tuple[str, ...] = ()
    app: str | None = None
    module: str | None = None
    checkpoint: str | None = None

    def command(self, words: Sequence[str], module: str | None = None) -> str:
        """Return a command for the runs here."""
        if self.checkpoint is not None and words[0] == "resume":
            # An App that brings the workflow has another store, so the command takes no --store.
            app = ["--app", self.module] if self.module is not None else []
            return shlex.join(["effectflow", "resume", "--checkpoint", self.checkpoint, *app])
        return shlex.join(["effectflow", *words, *self.options_of(words[0], module)])

    def options_of(self, command: str, module: str | None = None) -> list[str]:
        """Return the options that another command needs."""
        app = self.app or module or (self.module if command in _NEED_CODE else None)
        return [*(["--app", app] if app is not None else []), *self.options]


_NEED_CODE = ("resume", "plan", "send", "complete-step", "rerun")

_PASSWORD = re.compile(
    r"(\w*(?:passw|pwd|secret|token)\w*\s*=\s*)(?:'(?:\\.|[^'\\])*'?|[^&;#\s]*)|(//[^:@/?#]*:).*(?=@)",
    re.IGNORECASE,
)
"""The value of a parameter that nobody should see, and the password before a host."""

_location: ContextVar[RunLocation] = ContextVar("effectflow_location")


def without_password(url: str) -> str:
    """Return the URL of a store with `...` for its passwords, which the user has to add again."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}...", url)


def suggest_for(location: RunLocation) -> None:
    """Let the suggestions of this command lead to these runs."""
    _location.set(location)


def suggest_code(module: str) -> None:
    """Let the suggestions of this command name the module with the workflow."""
    _location.set(replace(_location.get(), module=module))


def suggested(*words: str, module: str | None = None) -> str:
    """Return a command for the same runs, as a user types it.

    Parameters:
        words: the name of the command, and its arguments.
        module: what brings the workflow of the run, for a command that needs its code.
    """
    return _location.get().command(words, module)


def message_of(error: Exception) -> str:
    """Return what happened and what to do next, with the commands that do it."""
    if not isinstance(error, CheckpointError):
        return str(error)
    hint = _hint_of(error)
    return f"{error.problem}. {hint}" if hint else error.problem


def _hint_of(error: CheckpointError) -> str:
    match error:
        case RunNotFound(nearest=()):
            return f"`{suggested('list')}` shows the runs of this store."
        case DefinitionChanged() if error.run_id:
            return (
                "Resume it with the code that it was started with, give the workflow a version and a "
                "migration, or add --force if the change does not matter to it."
            )
        case RunBusy(is_gone=False, run_id=run_id):
            pause = suggested("pause", run_id)
            return f"Wait for it to end, or pause it first: {pause}"
        case OutcomeUnknown(is_repeated=True):
            return "To run it again, add --force."
        case OutcomeUnknown():
            settle = suggested("complete-step", error.run_id, error.step, "JSON")
            return (
                f"Find out. If it happened, give its output with `{settle}`; if not, resume with --force "
                "to run it again."
            )
        case RunEnded(run_id=run_id) if _location.get().app or _location.get().module:
            return f"To do the work again: {suggested('rerun', run_id)}"
        case CorruptCheckpoint(run_id=run_id, intact=int(intact)):
            show, repair = (
                suggested("show", run_id, "--at", str(intact)),
                suggested("repair", run_id),
            )
            return after_damage(f"`{show}`", f"`{repair}`", intact)
        case _:
            return error.hint
