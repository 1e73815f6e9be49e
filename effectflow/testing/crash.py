"""Stop a run dead at every entry of its journal in turn, resume it, and compare.

The idea is from crash-consistency testing of databases and file systems: whatever point the process
died at, what comes after the resume must be what would have come without the crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from returns.result import Result

from effectflow.checkpoint import (
    Checkpoint,
    CheckpointStore,
    HasCheckpoints,
    Lease,
    Record,
    RunInfo,
    RunQuery,
    RunSummary,
    read_checkpoint,
)
from effectflow.stores import MemoryStore
from effectflow.testing.clock import TestClock
from effectflow.workflows import Workflow

__all__ = ["CrashPoint", "crash_everywhere"]

Env = TypeVar("Env", bound=HasCheckpoints)
E = TypeVar("E")
Input = TypeVar("Input")
Out = TypeVar("Out")

_RUN = "crash-test"


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The `append`-th append of a run (from 1), just before or just after it became durable."""

    append: int
    is_durable: bool

    def __str__(self) -> str:
        return f"{'after' if self.is_durable else 'before'} append {self.append}"


async def crash_everywhere(
    workflow: Workflow[Env, E, Input, Out],
    input: Input,
    make_env: Callable[[CheckpointStore], Env],
) -> list[CrashPoint]:
    """Crash a workflow at every append, resume it each time, and compare with the whole run.

    Compared are the result, the completed steps with their outputs, and the history. Steps that run
    side by side may end in any order, so order counts only within one flow: both are compared by step.
    The clock of all these runs tells one time for ever, as what a run does again it does later; delays
    pass at once, and timeouts strike.

    Parameters:
        workflow: what to run. Its steps must give the same outputs each time.
        input: what to start it with.
        make_env: an environment around a store; called once for each life of the process.

    Gives the points at which the run was crashed. Raises AssertionError, naming the point, where a
    resumed run ended otherwise.
    """
    whole = _CrashingStore(MemoryStore(), None)
    expected = _shown(await _live(workflow, input, make_env(whole)), await _end_of(whole))
    points = [
        CrashPoint(append, is_durable)
        for append in range(1, whole.appends + 1)
        for is_durable in (False, True)
    ]
    for point in points:
        disk = MemoryStore()
        try:
            await _live(workflow, input, make_env(_CrashingStore(disk, point)))
        except BaseException as raised:
            if not _is_crash(raised):
                raise
        result = await _live(workflow, input, make_env(_CrashingStore(disk, None)))
        found = _shown(result, await _end_of(disk))
        for what, value in expected.items():
            if found[what] != value:
                raise AssertionError(
                    f"crashed {point}: the {what} of the resumed run is {found[what]!r}, "
                    f"and that of the whole run {value!r}"
                )
    return points


async def _live(
    workflow: Workflow[Env, E, Input, Out], input: Input, env: Env
) -> Result[Out, object]:
    """One life of the process: starting again with the same id and input takes up the run."""
    return await _StoppedClock().run(workflow.start(input, run_id=_RUN), env)


async def _end_of(store: CheckpointStore) -> Checkpoint:
    return await read_checkpoint(store, _RUN)


def _shown(result: Result[Any, Any], checkpoint: Checkpoint) -> dict[str, object]:
    return {
        "result": repr(result),
        "completed steps": {step.step: step.output for step in checkpoint.completed_steps},
        "history": {item.step: (item.outcome, item.detail) for item in checkpoint.history},
    }


class _StoppedClock(TestClock):
    """Wakes whoever waits, and tells the same time ever after."""

    def now(self) -> datetime:
        return datetime(2000, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0


class _Crash(BaseException):
    """The process is dead."""


def _is_crash(raised: BaseException) -> bool:
    if isinstance(raised, BaseExceptionGroup):
        parts = cast("BaseExceptionGroup[BaseException]", raised).exceptions
        return all(_is_crash(part) for part in parts)
    return isinstance(raised, _Crash)


class _CrashingStore:
    """A store as a process sees it that dies at a point: from then on nothing gets through.

    Its leases expire at once, as if the dead process had been found dead.
    """

    def __init__(self, store: CheckpointStore, point: CrashPoint | None) -> None:
        self.appends = 0
        self._store = store
        self._point = point
        self._is_dead = False

    @property
    def durability(self) -> str:
        return self._store.durability

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        self._check()
        return await self._store.claim(run_id, owner=owner, seconds=0)

    async def renew(self, lease: Lease, *, seconds: float) -> Lease:
        self._check()
        return await self._store.renew(lease, seconds=0)

    async def release(self, lease: Lease) -> None:
        self._check()
        await self._store.release(lease)

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
    ) -> None:
        self._check()
        self.appends += 1
        is_here = self._point is not None and self._point.append == self.appends
        if is_here and self._point is not None and not self._point.is_durable:
            self._is_dead = True
        self._check()
        await self._store.append(lease, bodies, after=after, summary=summary, release=release)
        self._is_dead = is_here
        self._check()

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        self._check()
        return await self._store.read(run_id, after=after)

    async def info(self, run_id: str) -> RunInfo | None:
        self._check()
        return await self._store.info(run_id)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        self._check()
        return await self._store.find(query)

    async def delete(self, run_id: str) -> None:
        self._check()
        await self._store.delete(run_id)

    def _check(self) -> None:
        if self._is_dead:
            raise _Crash

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass
