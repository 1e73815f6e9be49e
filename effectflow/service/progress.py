"""`progress`: show how far the runs of a script or a notebook have got."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from effectflow.builders.progress import JobCounter, JobProgress
from effectflow.checkpoint.entries import (
    BeforeStep,
    Completed,
    Failed,
    Finished,
    Interrupted,
    Paused,
    Suspended,
)
from effectflow.checkpoint.observers import (
    CheckpointEvent,
    EntryAppended,
    Observer,
    RunResumed,
    StepSkipped,
)
from effectflow.effects.clock import in_words

_SECONDS_BETWEEN_LINES = 2.0


def progress() -> Observer:
    """Return an observer that shows a bar for each run while it is driven in this process.

    Pass it to the checkpoints of the runs. The bar counts the items of the job of a run: of a map-reduce,
    or of a `par_traverse`, `par_all` or `par_try_all`. If the items have a length, it shows the total and
    the time that is left. For other runs, it counts steps. What a resume skips is done, and does not
    count for the speed.

    In a notebook, tqdm draws the bar if it is installed, otherwise rich; elsewhere, rich comes first. If
    standard error is no terminal, a line is printed every two seconds and at the end.

    Raises ModuleNotFoundError if neither is installed.

    Example:
        >>> from effectflow import Checkpoints, progress
        >>> from effectflow.stores import MemoryStore
        >>> checkpoints = Checkpoints(MemoryStore(), observers=[progress()])
    """
    return ProgressObserver(_bars())


def _bars() -> Bars:
    is_notebook = "ipykernel" in sys.modules
    if not (is_notebook or sys.stderr.isatty()):
        return Lines(lambda line: sys.stderr.write(f"{line}\n"))
    has_rich, has_tqdm = find_spec("rich") is not None, find_spec("tqdm") is not None
    if has_tqdm and (is_notebook or not has_rich):
        return TqdmBars()
    if has_rich:
        from rich.console import Console

        return RichBars(Console(stderr=not is_notebook))
    raise ModuleNotFoundError(
        "a progress bar needs rich or tqdm: pip install rich (or tqdm, for notebooks)", name="rich"
    )


class Bars(Protocol):
    """Shows how far runs have got."""

    def show(self, run_id: str, done: int, total: int | None, what: str, note: str) -> None:
        """Show that so many of the items or steps of a run are done; the note has the speed."""
        ...

    def close(self, run_id: str) -> None:
        """Leave the bar of a run as it is, because its life has ended."""
        ...


class ProgressObserver:
    """Counts the steps and items of runs as they are driven, and shows them in bars."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._runs: dict[str, _Count] = {}

    def notify(self, event: CheckpointEvent) -> None:
        match event:
            case RunResumed(run_id) | EntryAppended(run_id) | StepSkipped(run_id):
                count = self._runs.setdefault(run_id, _Count())
                if count.note(event):
                    self._bars.show(run_id, *count.shown())
                if isinstance(event, EntryAppended) and isinstance(event.entry, _ENDS):
                    self.close(run_id)
            case _:
                pass

    def close(self, *run_ids: str) -> None:
        """Close the bars of runs whose lives have ended; by default all."""
        for run_id in run_ids or [*self._runs]:
            if self._runs.pop(run_id, None) is not None:
                self._bars.close(run_id)


_ENDS = (Finished, Interrupted, Suspended, Paused)


class _Count:
    """What one life of a run has done, and what was done before."""

    def __init__(self) -> None:
        self._jobs = JobCounter()
        self._began = time.monotonic()
        self._completed = 0
        self._skipped = 0

    def note(self, event: CheckpointEvent) -> bool:
        """Note an event. Return whether something was done."""
        match event:
            case EntryAppended(_, BeforeStep(step=path, items=items)):
                self._jobs.begin(path, time.monotonic())
                if items is not None:
                    self._jobs.expect(self._jobs.newest, items)
                return items is not None
            case EntryAppended(_, Completed(path, output)):
                self._completed += 1
                self._jobs.end(path, output, at=time.monotonic())
            case EntryAppended(_, Failed(path)):
                self._jobs.end(path, has_failed=True, at=time.monotonic())
            case StepSkipped(_, path, output, has_failed):
                self._skipped += not has_failed
                self._jobs.end(path, output, has_failed=has_failed)
            case _:
                return False
        return True

    def shown(self) -> tuple[int, int | None, str, str]:
        """Return what is done, of what total, what it is, and the speed."""
        job = self._jobs.job
        if job is not None:
            now = job.progress()
            return now.items_done + now.items_failed, now.items_total, "items", _note(now)
        speed = self._completed / max(time.monotonic() - self._began, 1e-9)
        return self._completed + self._skipped, None, "steps", f"{speed:.3g}/s"


def _note(now: JobProgress) -> str:
    speed = "" if now.per_second is None else f"{now.per_second:.3g}/s"
    failed = f"{now.items_failed} failed" if now.items_failed else ""
    return ", ".join(filter(None, (failed, speed, now.left)))


class Lines:
    """Prints a line for each run, at most one every two seconds, and one when its life has ended.

    A life without items that ends before its first line has none.

    Parameters:
        say: prints a line.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._printed_at = time.monotonic()
        self._open: dict[str, _Line] = {}

    def show(self, run_id: str, done: int, total: int | None, what: str, note: str) -> None:
        now = time.monotonic()
        line = self._open.setdefault(run_id, _Line(now))
        noun = what.removesuffix("s") if (done if total is None else total) == 1 else what
        line.text = f"{done}{'' if total is None else f' of {total}'} {noun} done"
        line.is_worth_saying |= what == "items"
        if now - self._printed_at >= _SECONDS_BETWEEN_LINES:
            self._printed_at = now
            line.is_worth_saying = True
            self._say(f"{line.text}{note and f', {note}'}")

    def close(self, run_id: str) -> None:
        line = self._open.pop(run_id, None)
        if line is not None and line.is_worth_saying:
            self._say(f"{line.text} in {in_words(time.monotonic() - line.began)}")


@dataclass(slots=True)
class _Line:
    """What one run has done, in words, since `began`."""

    began: float
    text: str = ""
    is_worth_saying: bool = False


class RichBars:
    """Shows the bars of runs below what a rich console prints."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._tasks: dict[str, Any] = {}
        # A run that cannot be saved has no last entry, and the terminal would have no cursor.
        atexit.register(self._progress.stop)

    def show(self, run_id: str, done: int, total: int | None, what: str, note: str) -> None:
        if not self._tasks:
            self._progress.start()
        if run_id not in self._tasks:
            self._tasks[run_id] = self._progress.add_task(what, total=total, note=note)
        self._progress.update(
            self._tasks[run_id], description=what, completed=done, total=total, note=note
        )

    def close(self, run_id: str) -> None:
        if self._tasks.pop(run_id, None) is not None and not self._tasks:
            self._progress.stop()


class TqdmBars:
    """Shows the bars of runs with tqdm, which knows notebooks."""

    def __init__(self) -> None:
        # Its types are not installed with it.
        self._make: Any = import_module("tqdm.auto").tqdm
        self._open: dict[str, Any] = {}

    def show(self, run_id: str, done: int, total: int | None, what: str, note: str) -> None:
        if run_id not in self._open:
            layout = "{desc} {bar} {n_fmt}/{total_fmt} {postfix}"
            self._open[run_id] = self._make(desc=what, total=total, bar_format=layout)
        bar = self._open[run_id]
        bar.desc, bar.total, bar.n = what, total, done
        bar.set_postfix_str(note)

    def close(self, run_id: str) -> None:
        bar = self._open.pop(run_id, None)
        if bar is not None:
            bar.close()
