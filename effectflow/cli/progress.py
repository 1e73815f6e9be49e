"""Progress of a run: a bar with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from effectflow.checkpoint import CheckpointEvent, Completed, EntryAppended, StepSkipped

__all__ = ["RunProgress"]

_SECONDS_BETWEEN_LINES = 2.0


class RunProgress:
    """Counts the steps of a run, as an observer, and shows the count.

    Attributes:
        completed: steps that this process ran to their end.
        skipped: steps whose recorded end was used instead.
        total: how many steps there will be, where the run has said so: the length of the list that a
            step named `sized_by` gave, besides the steps outside the list.
    """

    def __init__(self, console: Console, *, sized_by: str | None = None) -> None:
        self.console = console
        self.sized_by = sized_by
        self.completed = 0
        self.skipped = 0
        self.total: int | None = None
        self._began = time.monotonic()
        self._printed_at = self._began
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("steps", total=None, rate="")

    def notify(self, event: CheckpointEvent) -> None:
        match event:
            case EntryAppended(_, Completed(step, output)):
                self.completed += 1
                self._take_size(step, output)
            case StepSkipped(_, step, output):
                self.skipped += 1
                self._take_size(step, output)
            case _:
                return
        self._show()

    def _take_size(self, step: str, output: object) -> None:
        if step == self.sized_by and isinstance(output, list):
            # The step itself, one for each item of its list, and the one that ends the run.
            self.total = len(cast("list[object]", output)) + 2

    def _show(self) -> None:
        done = self.completed + self.skipped
        rate = f"{self.completed / max(time.monotonic() - self._began, 1e-9):.0f}/s"
        if self.console.is_terminal:
            self._bar.update(self._task, completed=done, total=self.total, rate=rate)
            return
        now = time.monotonic()
        if now - self._printed_at >= _SECONDS_BETWEEN_LINES:
            self._printed_at = now
            of_total = f" of {self.total}" if self.total else ""
            self.console.print(f"{done}{of_total} steps done, {rate}", highlight=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()
