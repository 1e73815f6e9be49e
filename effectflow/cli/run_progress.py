"""What a command says while it drives a run: where it begins, what it waits for, how far it is."""

from __future__ import annotations

import math
import time
from functools import partial

import anyio
from rich.console import Console

from effectflow.builders.kinds import view_of
from effectflow.checkpoint import (
    BeforeStep,
    CheckpointEvent,
    ChildStarted,
    Completed,
    EntryAppended,
    Failed,
    Interrupted,
    RunResumed,
    RunWaits,
    StepSkipped,
)
from effectflow.cli.render import say, when
from effectflow.cli.suggestions import suggested
from effectflow.service.environment import AnyWorkflow
from effectflow.service.progress import Lines, ProgressObserver, RichBars

_LONG = 5.0
"""The seconds from which on a wait for a time is worth a line."""

_SECONDS_AT_REST = 0.2
"""A run that waits is left once no step is in progress, and nothing has happened in it for so long."""


class RunProgress:
    """Counts the steps of a run, as an observer, and shows its progress.

    Attributes:
        completed: steps that this process completed.
        skipped: steps of the run whose recorded output was used.
        waits_for: what the run waits for, in words; "" before it does.
        begun: steps and spawned runs that this process began.
        began_with: the path of the step that a resumed run began with, or None.
    """

    def __init__(
        self, workflow: AnyWorkflow, run_id: str, console: Console, *, title: str = ""
    ) -> None:
        """Create it. It says `title` once the run has begun or is resumed, and not if that is refused."""
        self._title = title
        self.waits_for = ""
        self._leave: anyio.CancelScope | None = None
        self._in_progress = set[str]()
        self.console = console
        self.completed = 0
        self.skipped = 0
        self.begun = 0
        self.began_with: str | None = None
        self._run_id = run_id
        self._view = view_of(workflow.kind)
        self._resumed: str | None = None
        self._waits = set[str]()
        is_terminal = console.is_terminal
        bars = RichBars(console) if is_terminal else Lines(partial(say, console=console))
        self._shown = ProgressObserver(bars)

    def notify(self, event: CheckpointEvent) -> None:
        if self._title and isinstance(event, RunResumed | EntryAppended):
            say(self._title, self.console)
            self._title = ""
        self._shown.notify(event)
        if self._leave is not None:
            self._note_rest(event, self._leave)
        match event:
            case RunResumed(run_id):
                # The first one is the run itself, later ones are runs that its steps drive.
                self._resumed = self._resumed or run_id
            case EntryAppended(run_id, BeforeStep(step=path) | ChildStarted(path=path)):
                self._begin(run_id, path)
            case EntryAppended(_, Completed()):
                self.completed += 1
            case StepSkipped(run_id, has_failed=False) if run_id == self._run_id:
                self.skipped += 1
            case RunWaits(run_id, what, until) if self._leave is None and _is_long(until):
                self._wait(run_id, what, until)
            case _:
                pass

    def leave_at_rest(self) -> anyio.CancelScope:
        """Return a scope around the run, which is cancelled once the run only waits."""
        self._leave = anyio.CancelScope()
        return self._leave

    def _note_rest(self, event: CheckpointEvent, leave: anyio.CancelScope) -> None:
        """Let the scope end soon if the run waits, and no step is in progress."""
        match event:
            case EntryAppended(_, BeforeStep(step=path)):
                self._in_progress.add(path)
            case EntryAppended(
                _, Completed(step=path) | Failed(step=path) | Interrupted(step=path)
            ):
                self._in_progress.discard(path)
            case RunWaits(run_id, what, until) if _is_long(until):
                self.waits_for = what if run_id == self._run_id else f"run {run_id}"
            case _:
                pass
        is_at_rest = self.waits_for and not self._in_progress
        leave.deadline = anyio.current_time() + _SECONDS_AT_REST if is_at_rest else math.inf

    def close(self) -> None:
        """Close all bars, whose runs this process has left."""
        self._shown.close()

    def _begin(self, run_id: str, path: str) -> None:
        self.begun += 1
        if self.began_with is None and run_id == self._resumed:
            self.began_with = path
            where = self._view.place(path)
            say(f"Resuming run {run_id}: it begins with {where}.", self.console)

    def _wait(self, run_id: str, what: str, until: float | None) -> None:
        """Say what a run waits for, and how to go on."""
        waits = f"Run {run_id} waits for {what}"
        if until is not None:
            waits += f", until {when(until)}"
        if waits in self._waits:
            return
        say(f"{waits}.", self.console)
        if what.startswith("signal "):
            send = suggested("send", run_id, what.removeprefix("signal "), "JSON")
            say(f"Send it with: {send}", self.console)
        elif what.startswith("run "):
            say("A worker drives that one: effectflow worker MODULE:APP", self.console)
        if not self._waits:
            resume = suggested("resume", self._run_id)
            say(f"Ctrl-C leaves it. A worker continues it, and so does: {resume}", self.console)
        self._waits.add(waits)


def _is_long(until: float | None) -> bool:
    return until is None or until - time.time() > _LONG
