"""Processes that tell a tale on a store and meet a fault of the file system while they do."""

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
from effectflow.checkpoint import CheckpointError, CheckpointStore, RunBusy, StoreUnavailable
from effectflow.stores import _file_run, _sqlite_database
from tests.stores.faults.disk import Note, Operation, note, read_record
from tests.stores.faults.forking import ending_of, forked, get_ready
from tests.stores.faults.preload import KILL, Calls, Fault, arm, mend
from tests.stores.faults.tale import RUN, STORES, WORDS, App, TellingStore, tale

__all__ = ["Life", "Lived", "Lives"]

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Life:
    """What a process is to do.

    Attributes:
        store: on which store, by its name in `STORES`.
        folder: where; its files will be in the folder `data` there.
        fault, at: which fault it meets, at which call; at none with 0.
    """

    store: str
    folder: Path
    fault: Fault = KILL
    at: int = 0

    @property
    def data(self) -> Path:
        return self.folder / "data"


@dataclass(frozen=True)
class Lived:
    """How it went.

    Attributes:
        status: the exit code, or minus the signal that killed it.
        operations: what it did to its files.
    """

    status: int
    operations: Sequence[Operation]

    def said(self, word: str) -> list[str]:
        """What it said that begins with this word, without it."""
        notes = [o.text.partition(" ") for o in self.operations if isinstance(o, Note)]
        return [rest for first, _, rest in notes if first == word]

    @property
    def calls(self) -> int:
        """How many of the calls there were that might have been struck, if it came to its end."""
        return int(self.said("calls")[0])


# What happens within such a process.


def live(life: Life) -> None:
    """Live it, and record it."""
    life.data.mkdir()
    record = os.open(life.folder / "record", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    reach_limits_soon()
    arm(life.data, life.fault, life.at, record)
    anyio.run(survive, life, partial(note, record))
    note(record, f"calls {mend()}")


def reach_limits_soon() -> None:
    """So that a few entries meet all that a long run meets."""
    limits = {
        (_file_run, "_ENTRIES_PER_FILE"): 4,
        (_sqlite_database, "_LOG_PAGES"): 4,
        (_sqlite_database, "_LOG_LIMIT"): 20_000,
        (_sqlite_database, "_COMMITS_BETWEEN_LOOKS"): 3,
    }
    for (module, name), limit in limits.items():
        assert hasattr(module, name)
        setattr(module, name, limit)


async def survive(life: Life, tell: Callable[[str], object]) -> None:
    """Tell the tale. If the store fails, mend what is broken, and go on."""

    async def recover(error: CheckpointError) -> None:
        if isinstance(error, RunBusy):
            # Its lease could not be given free, and holds until it expires.
            await anyio.sleep(error.expires_in)
        else:
            tell(f"failed {type(error).__name__} {error}")
            mend()

    def app(store: CheckpointStore) -> App:
        checkpoints = Checkpoints(
            TellingStore(store, tell),
            history=2,
            lease_seconds=0.05 if life.fault.error else 30,
        )
        return App(checkpoints, lambda word: tell(f"say {word}"))

    for _ in range(2):
        try:
            async with STORES[life.store](life.data) as store:
                for _ in range(3):
                    match await tale.start(WORDS, run_id=RUN).run(app(store)):
                        case Success(words):
                            tell(f"told {'/'.join(words)}")
                            return
                        case Failure(CheckpointError() as error):
                            await recover(error)
        except StoreUnavailable as error:
            await recover(error)


# Where they come from.


def main() -> None:
    get_ready()
    for line in sys.stdin:
        asked = json.loads(line)
        fault = Fault(**asked["fault"] | {"calls": Calls(asked["fault"]["calls"])})
        life = Life(asked["store"], Path(asked["folder"]), fault, asked["at"])
        print(ending_of(forked(partial(live, life))), flush=True)


class Lives:
    """The processes that they are forked from, as many as may run side by side.

    Parameters:
        library: what is preloaded.
    """

    def __init__(self, library: Path) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.stores.faults.lives"],
                cwd=ROOT,
                env=os.environ | {"LD_PRELOAD": str(library)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(os.cpu_count() or 1)
        ]
        self._free = SimpleQueue[subprocess.Popen[str]]()
        for process in self._processes:
            self._free.put(process)

    def live(self, life: Life) -> Lived:
        """Let a process live this life, to its end. May be called from several threads."""
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
        self, life: Life, check: Callable[[Life, Lived], object], *, every: int = 1
    ) -> None:
        """Live it with the fault at each call in turn, or at each n-th, and check what became of it."""

        def live(at: int) -> None:
            struck = replace(life, folder=life.folder / str(at), at=at)
            check(struck, self.live(struck))

        calls = self.live(replace(life, folder=life.folder / "whole")).calls
        assert calls > 5
        with ThreadPoolExecutor(len(self._processes)) as pool:
            list(pool.map(live, range(1, calls + 1, every)))

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
