"""The progress of a run, as a bar or as lines."""

from __future__ import annotations

import time
from typing import cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from effectflow.builders.kinds import view_of
from effectflow.checkpoint import (
    BeforeStep,
    CheckpointEvent,
    ChildStarted,
    Completed,
    EntryAppended,
    RunResumed,
    StepSkipped,
    Waiting,
)
from effectflow.cli.app_loader import AnyWorkflow
from effectflow.cli.census import census
from effectflow.cli.history import wait_text
from effectflow.cli.render import say

_SECONDS_BETWEEN_LINES = 2.0


class RunProgress:
    """Counts the steps of a run, as an observer, and shows a bar on a terminal, or lines elsewhere.

    Attributes:
        completed: steps that this process completed.
        skipped: steps of the run whose recorded output was used.
        begun: steps and spawned runs that this process began.
        began_with: the path of the step that a resumed run began with, or None.
        bar: enter it while the run is driven.
    """

    def __init__(self, workflow: AnyWorkflow, run_id: str, console: Console) -> None:
        self.console = console
        self._run_id = run_id
        self.completed = 0
        self.skipped = 0
        self.begun = 0
        self.began_with: str | None = None
        self._workflow = workflow
        self._resumed: str | None = None
        # Known for the demo once it has found its files.
        self._total: int | None = None
        self._began = time.monotonic()
        self._printed_at = self._began
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task("steps", total=None, rate="")

    def notify(self, event: CheckpointEvent) -> None:
        match event:
            case RunResumed(run_id):
                # The first one is the run itself, later ones are runs that its steps drive.
                self._resumed = self._resumed or run_id
                return
            case EntryAppended(run_id, BeforeStep(step=path) | ChildStarted(path=path)):
                self._begin(run_id, path)
                return
            case EntryAppended(run_id, Waiting() as wait) if wait.topic or wait.child:
                # Nothing in this process can end such a wait.
                driver = ", which a worker drives" if wait.child else ""
                say(f"Run {run_id} waits {wait_text(wait)}{driver}.", self.console)
                return
            case EntryAppended(_, Completed(step, output)):
                self.completed += 1
            case StepSkipped(run_id, step, output, has_failed=False) if run_id == self._run_id:
                self.skipped += 1
            case _:
                return
        if self._workflow is census and step == "discover_files" and isinstance(output, list):
            # This step, one step for each item, and the last step, which writes the reports.
            self._total = len(cast("list[object]", output)) + 2
        self._show()

    def _begin(self, run_id: str, path: str) -> None:
        self.begun += 1
        if self.began_with is None and run_id == self._resumed:
            self.began_with = path
            say(
                f"Resuming run {run_id}: it begins with {view_of(self._workflow.kind).place(path)}.",
                self.console,
            )

    def _show(self) -> None:
        done = self.completed + self.skipped
        now = time.monotonic()
        rate = f"{self.completed / max(now - self._began, 1e-9):.0f}/s"
        if self.console.is_terminal:
            self.bar.update(self._task, completed=done, total=self._total, rate=rate)
        elif now - self._printed_at >= _SECONDS_BETWEEN_LINES:
            self._printed_at = now
            of_total = f" of {self._total}" if self._total else ""
            say(f"{done}{of_total} steps done, {rate}", self.console)
