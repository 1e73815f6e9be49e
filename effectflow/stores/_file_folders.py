"""Find the runs of a FileStore. Read only the files that changed since the last look."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from effectflow.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    RunConflict,
    UnsupportedVersion,
)
from effectflow.checkpoint.run_info import RunInfo
from effectflow.stores._atomic_files import folder_name
from effectflow.stores._file_history import History
from effectflow.stores._file_run import Mark, RunFolder


@dataclass(frozen=True, slots=True)
class _Known:
    """A run as it was at the last look. Its files have changed if they have other marks."""

    folder: RunFolder
    marks: tuple[Mark | None, Mark | None]
    info: RunInfo


class RunFolders:
    """The folders of all runs in a directory, remembered for the next look."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, _Known] = {}

    def look(self) -> tuple[list[RunInfo], dict[str, CheckpointError]]:
        """Return one line about each run, and the problems of those that cannot be read."""
        infos: list[RunInfo] = []
        problems: dict[str, CheckpointError] = {}
        known: dict[str, _Known] = {}
        with os.scandir(self._directory / "sessions") as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                seen = self._known.get(entry.name)
                run_id = None if seen is None else seen.info.run_id
                try:
                    if seen is not None and seen.marks == seen.folder.marks():
                        known[entry.name] = seen
                        infos.append(seen.info)
                    elif (run_id := _run_id_of(Path(entry.path))) is not None:
                        self._read(entry.name, run_id, infos, known)
                except (CorruptCheckpoint, RunConflict, UnsupportedVersion) as problem:
                    problems[run_id or entry.name] = problem
                except OSError as error:
                    run_id = run_id or entry.name
                    problems[run_id] = CorruptCheckpoint(run_id, f"it cannot be read: {error}")
        self._known = known
        return infos, problems

    def _read(self, name: str, run_id: str, infos: list[RunInfo], known: dict[str, _Known]) -> None:
        folder = RunFolder(self._directory, run_id, history=0)
        # Before the files, so that a later change is seen.
        marks = folder.marks()
        state = folder.state()
        if state is None:
            return
        info = folder.info(state)
        infos.append(info)
        # A damaged file is replaced by others, which have no marks here.
        if not state.damage:
            known[name] = _Known(folder, marks, info)


def _run_id_of(path: Path) -> str | None:
    """Return the run in a folder. Return None if it has none, or is a copy of another folder."""
    is_copy = False
    for file in _files_with_run_id(path):
        try:
            run_id: Any = orjson.loads(file.read_bytes())["run_id"]
            if folder_name(run_id) == path.name:
                return run_id
            is_copy = True
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None if is_copy or folder_name(path.name) != path.name else path.name


def _files_with_run_id(path: Path) -> Iterator[Path]:
    yield path / "lease.json"
    yield path / "checkpoint.json"
    yield from History(path).copies()
