"""Find the runs of a FileStore, and those of them that are due. Read only those that changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from effectflow.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    RunConflict,
    UnsupportedVersion,
)
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import DueRuns, RunInfo, RunSummary
from effectflow.stores._due import Choice, Usage, choose_due, in_order, is_due
from effectflow.stores._file_format import RunState
from effectflow.stores._file_run import Mark, RunFolder, run_id_of

_Marks: TypeAlias = tuple[Mark | None, Mark | None]
"""The marks of the checkpoint and the mailbox of a run."""


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run as it was at the last look, without its lease."""

    folder: RunFolder
    marks: _Marks
    state: RunState
    summary: RunSummary

    def info(self) -> RunInfo:
        """Return one line about the run, with its lease as it is now."""
        return self.folder.info(self.state, self.summary)


def infos_of(runs: Iterable[KnownRun]) -> tuple[list[RunInfo], dict[str, CheckpointError]]:
    """Return one line about each run, and the problems of runs whose leases cannot be read."""
    infos: list[RunInfo] = []
    damaged: dict[str, CheckpointError] = {}
    for run in runs:
        try:
            infos.append(run.info())
        except (CorruptCheckpoint, UnsupportedVersion) as error:
            damaged[run.state.run_id] = error
    return infos, damaged


class RunFolders:
    """Reads all runs, and remembers them for the next look.

    Parameters:
        remove_abandoned: called with a folder that has no entries.
    """

    def __init__(self, directory: Path, remove_abandoned: Callable[[RunFolder], None]) -> None:
        self._directory = directory
        self._remove_abandoned = remove_abandoned
        self._known: dict[str, KnownRun] = {}

    def look(self) -> tuple[list[KnownRun], dict[str, CheckpointError]]:
        """Return all runs, and the problems of those that cannot be read. Raise OSError."""
        runs: dict[str, KnownRun] = {}
        damaged: dict[str, CheckpointError] = {}
        with os.scandir(self._directory / "sessions") as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                known = self._known.get(entry.name)
                if known is None or known.marks != known.folder.marks():
                    known = self._read(Path(entry.path), damaged)
                if known is not None:
                    runs[entry.name] = known
        self._known = {name: run for name, run in runs.items() if not run.state.damage}
        return list(runs.values()), damaged

    def _read(self, path: Path, damaged: dict[str, CheckpointError]) -> KnownRun | None:
        run_id = run_id_of(path)
        if run_id is None:
            return None
        folder = RunFolder(self._directory, run_id)
        try:
            # Before the files, so that a later change is seen.
            marks = folder.marks()
            state = folder.state()
            if state is None:
                self._remove_abandoned(folder)
                return None
            return KnownRun(folder, marks, state.without_records(), folder.summary(state))
        except (CorruptCheckpoint, RunConflict, UnsupportedVersion) as error:
            damaged[run_id] = error
            return None


def choose_runs(runs: Sequence[KnownRun], due: DueRuns, usage: Usage) -> Choice:
    """Choose the runs to claim."""
    timed = [
        run
        for run in runs
        if run.summary.due_at is not None
        and not run.summary.is_nested
        and run.summary.workflow in due.workflows
    ]
    ready, _ = infos_of(run for run in timed if is_due(run.summary, due))
    later = [run.summary.due_at for run in timed if not is_due(run.summary, due)]
    chosen = choose_due(sorted(ready, key=in_order), due, usage)
    return Choice(chosen, min(filter(None, later), default=None))


def usage_of(
    runs: Iterable[KnownRun], starts: Mapping[str, Sequence[float]], due: DueRuns, now: float
) -> Usage:
    """Return how much of the limits these runs use, given when runs were started last."""

    def held() -> Iterator[tuple[str, Lease]]:
        limited = (run for run in runs if run.summary.workflow in due.limits)
        infos, _ = infos_of(run for run in limited if not run.summary.status.has_ended)
        for info in infos:
            if info.lease is not None:
                yield info.summary.workflow, info.lease

    return Usage.of(held(), starts, due, now)
