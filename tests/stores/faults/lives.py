"""Processes that drive a run on a store and meet a fault of the file system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self

import anyio
from returns.result import Failure, Success

from effectflow import Checkpoints
from effectflow.checkpoint import (
    CheckpointError,
    CheckpointStore,
    RunBusy,
    SaveFailed,
    StoreUnavailable,
    repair_run,
)
from effectflow.stores import _file_run, _sqlite_database, _sqlite_writer
from tests.stores.damage import change_entry, changed
from tests.stores.faults.disk import Note, Operation, note, read_record
from tests.stores.faults.forking import ending_of, forked, get_ready
from tests.stores.faults.preload import KILL, Calls, Fault, arm, clear_faults
from tests.stores.faults.tale import RUN, STORES, WORDS, App, TellingStore, digest, tale_on

__all__ = ["DAMAGED", "Life", "Lived", "Lives"]

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Life:
    """What a process does.

    Attributes:
        store: the name of the store in `STORES`.
        folder: where it works; its files are in the folder `data` there.
        fault, at: the fault that it meets, and at which call; 0 means at none.
        is_repair: whether it repairs a damaged run, which was written before, instead of driving one.
    """

    store: str
    folder: Path
    fault: Fault = KILL
    at: int = 0
    is_repair: bool = False

    @property
    def data(self) -> Path:
        return self.folder / "data"


@dataclass(frozen=True)
class Lived:
    """How the process ended.

    Attributes:
        status: the exit code, or minus the signal that killed it.
        operations: its changes to its files, and its notes.
    """

    status: int
    operations: Sequence[Operation]

    def said(self, word: str) -> list[str]:
        """Return its notes that begin with this word, without the word."""
        notes = [o.text.partition(" ") for o in self.operations if isinstance(o, Note)]
        return [rest for first, _, rest in notes if first == word]

    @property
    def calls(self) -> int:
        """The number of calls that a fault could have struck, if the process ended regularly."""
        return int(self.said("calls")[0])


# In such a process.


def live(life: Life) -> None:
    """Drive the run, and record all changes."""
    life.data.mkdir()
    record = os.open(life.folder / "record", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    reach_limits_soon()
    if life.is_repair:
        arm(life.data, life.fault, 0, record)
        anyio.run(write_damaged, life, partial(note, record))
    arm(life.data, life.fault, life.at, record)
    anyio.run(repair if life.is_repair else survive, life, partial(note, record))
    note(record, f"calls {clear_faults()}")


def reach_limits_soon() -> None:
    """Lower the limits, so that a few entries reach all that a long run reaches."""
    limits = {
        (_file_run, "_ENTRIES_PER_FILE"): 4,
        (_sqlite_database, "_LOG_PAGES"): 6,
        (_sqlite_database, "LOG_LIMIT"): 20_000,
        (_sqlite_writer, "LOG_LIMIT"): 20_000,
        (_sqlite_writer, "_COMMITS_BETWEEN_LOOKS"): 3,
    }
    for (module, name), limit in limits.items():
        assert hasattr(module, name)
        setattr(module, name, limit)


async def survive(life: Life, tell: Callable[[str], object]) -> None:
    """Drive the run. If the store fails, clear the fault and continue."""

    async def recover(error: CheckpointError) -> None:
        if isinstance(error, RunBusy):
            # The lease could not be released, and must expire.
            await anyio.sleep(error.expires_in)
        else:
            tell(f"failed {type(error).__name__} {error}")
            clear_faults()

    def app(store: CheckpointStore) -> App:
        checkpoints = Checkpoints(
            TellingStore(store, tell), lease_seconds=0.05 if life.fault.error else 30
        )
        return App(checkpoints, lambda word: tell(f"say {word}"), recover=recover)

    for _ in range(2):
        try:
            async with STORES[life.store](life.data) as store:
                for _ in range(3):
                    match await tale_on(store).start(WORDS, run_id=RUN).run(app(store)):
                        case Success(words):
                            tell(f"told {'/'.join(words)}")
                            return
                        case Failure(CheckpointError() as error):
                            await recover(error)
        except StoreUnavailable as error:
            await recover(error)


DAMAGED = 5
"""The damaged entry: the completion of the second step."""


async def write_damaged(life: Life, tell: Callable[[str], object]) -> None:
    """Write a complete run and damage it. Report which entries there are then: `entry DIGEST`."""
    async with STORES[life.store](life.data) as store:
        await tale_on(store).start(WORDS, run_id=RUN).run(App(Checkpoints(store), len))
        entries = [record.body for record in await store.read(RUN)]
        await change_entry(store, DAMAGED, RUN)
    for path in life.data.rglob("*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    entries[DAMAGED - 1] = changed(entries[DAMAGED - 1])
    for entry in entries:
        tell(f"entry {digest(entry)}")


async def repair(life: Life, tell: Callable[[str], object]) -> None:
    """Repair the run, and report that: `repaired`. If the store fails, clear the fault and repeat it."""
    for _ in range(2):
        try:
            async with STORES[life.store](life.data) as store:
                for _ in range(2):
                    try:
                        await repair_run(store, RUN)
                    except SaveFailed as error:
                        tell(f"failed {type(error).__name__} {error}")
                        clear_faults()
                    else:
                        tell("repaired")
                        return
        except StoreUnavailable as error:
            tell(f"failed {type(error).__name__} {error}")
            clear_faults()


# In the test.


def main() -> None:
    get_ready()
    for line in sys.stdin:
        asked = json.loads(line)
        fault = Fault(**asked["fault"] | {"calls": Calls(asked["fault"]["calls"])})
        life = Life(asked["store"], Path(asked["folder"]), fault, asked["at"], asked["is_repair"])
        print(ending_of(forked(partial(live, life))), flush=True)


class Lives:
    """The processes that fork them: one for each CPU, or one if pytest-xdist uses the other CPUs.

    Parameters:
        library: the library to preload.
    """

    def __init__(self, library: Path) -> None:
        count = 1 if "PYTEST_XDIST_WORKER" in os.environ else os.cpu_count() or 1
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.stores.faults.lives"],
                cwd=ROOT,
                env=os.environ | {"LD_PRELOAD": str(library)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]
        self._free = SimpleQueue[subprocess.Popen[str]]()
        for process in self._processes:
            self._free.put(process)

    def live(self, life: Life) -> Lived:
        """Run a process to its end. Several threads may call this."""
        life.folder.mkdir(parents=True)
        process = self._free.get()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps(asdict(life), default=str), file=process.stdin, flush=True)
            status = int(process.stdout.readline())
        finally:
            self._free.put(process)
        return Lived(status, read_record(life.folder / "record", life.data))

    def at_each_call(
        self,
        life: Life,
        check: Callable[[Life, Lived], object],
        *,
        every: int = 1,
        more_than: int = 5,
    ) -> None:
        """Strike each call, or each n-th, in a process of its own, and check the result.

        `more_than` is a number of calls that any such process exceeds.
        """

        def live(at: int) -> None:
            struck = replace(life, folder=life.folder / str(at), at=at)
            check(struck, self.live(struck))

        calls = self.live(replace(life, folder=life.folder / "whole")).calls
        assert calls > more_than
        # The first in this thread, which imports what all need: CPython 3.11 may raise a SystemError if
        # pytest parses modules in several threads at once (python/cpython#106905).
        live(1)
        with ThreadPoolExecutor(len(self._processes)) as pool:
            list(pool.map(live, range(1 + every, calls + 1, every)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes:
            with process:
                pass


if __name__ == "__main__":
    main()
