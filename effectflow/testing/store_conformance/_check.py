"""The class `Check`, and the helpers that the checks share."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
)
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Generic, TypeAlias, TypeVar

import anyio

from effectflow.checkpoint import (
    CheckpointStore,
    Lease,
    Owner,
    RunInfo,
    RunQuery,
    RunStatus,
    RunSummary,
)

T = TypeVar("T")
X = TypeVar("X", bound=Exception)

MakeStore: TypeAlias = Callable[[], CheckpointStore]

PATIENCE = 30.0
"""The seconds that a check waits for something that a store does at once."""


class Check:
    """One requirement for stores. Call it with a function that creates a store.

    `__name__` states the requirement.
    """

    def __init__(self, name: str, work: Callable[[MakeStore], Awaitable[None]]) -> None:
        self.__name__ = name
        self._work = work

    def __repr__(self) -> str:
        return f"<check {self.__name__}>"

    async def __call__(self, make: MakeStore) -> None:
        """Raise AssertionError, or pass on what the store raises, if it does not meet the requirement.

        Also raise AssertionError for a store that keeps the check waiting.
        """
        with within(10 * PATIENCE, "the check has not ended"):
            await self._work(make)


def check(f: Callable[[CheckpointStore], Awaitable[None]]) -> Check:
    """Make a check of one open store."""

    async def work(make: MakeStore) -> None:
        async with make() as store:
            await f(store)

    return Check(f.__name__, work)


def check_reopening(f: Callable[[MakeStore], Awaitable[None]]) -> Check:
    """Make a check that opens and closes the store itself. It skips stores in memory."""

    async def work(make: MakeStore) -> None:
        if make().durability != "memory":
            await f(make)

    return Check(f.__name__, work)


def check_of_two(f: Callable[[CheckpointStore, CheckpointStore], Awaitable[None]]) -> Check:
    """Make a check of two open stores over the same data. A store in memory is passed twice."""

    async def work(make: MakeStore) -> None:
        store = make()
        async with store, store if store.durability == "memory" else make() as other:
            await f(store, other)

    return Check(f.__name__, work)


def checks_of(module: ModuleType) -> list[Check]:
    """Return the checks of a module, in their order."""
    return [value for value in vars(module).values() if isinstance(value, Check)]


@contextmanager
def within(seconds: float, problem: str) -> Generator[None]:
    """Raise AssertionError with this problem if the block has not ended after this time."""
    with anyio.move_on_after(seconds) as limit:
        yield
    assert not limit.cancelled_caught, f"{problem}, after {seconds} s"


class InThread(Generic[T]):
    """A call in another thread. A store that never returns from it does not keep the process alive."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._future = Future[T]()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._future.set_result(self._call())
        except BaseException as raised:
            self._future.set_exception(raised)

    def result(self) -> T:
        """Return or raise the end of the call, which the event loop waits for, and cannot help."""
        ended = wait([self._future], timeout=PATIENCE).done
        assert ended, f"{self._call!r} has not returned after {PATIENCE} s"
        return self._future.result()


def renew(store: CheckpointStore, lease: Lease, *, seconds: float) -> Lease:
    """Renew a lease as a run does: in another thread, while the event loop is blocked."""
    return InThread(partial(store.renew, lease, seconds=seconds)).result()


class _Caught(Generic[X]):
    error: X


@contextmanager
def fails(kind: type[X]) -> Generator[_Caught[X]]:
    """Expect this exception inside the `with` block."""
    caught = _Caught[X]()
    try:
        yield caught
    except kind as error:
        caught.error = error
    else:
        raise AssertionError(f"expected {kind.__name__}, but nothing was raised")


def summary_of(
    status: RunStatus = RunStatus.RUNNING, *, workflow: str = "w", created_at: float = 0.0
) -> RunSummary:
    """Return a summary, by default of a running run."""
    return RunSummary(workflow, "standard", "1", status, created_at, dead_letters=3)


async def at_once(work: Callable[[T], Coroutine[object, object, None]], given: Iterable[T]) -> None:
    """Call `work` with each of these values, concurrently."""
    async with anyio.create_task_group() as group:
        for value in given:
            group.start_soon(work, value)


@asynccontextmanager
async def owner_in_another_process() -> AsyncGenerator[str]:
    """Yield an owner in another process, which is killed when the context ends."""
    script = "from effectflow.checkpoint import Owner; print(Owner.new(), flush=True); input()"
    child = subprocess.Popen(  # noqa: ASYNC220, it takes only milliseconds
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        yield child.stdout.readline().strip()
        child.kill()


async def claimed(store: CheckpointStore, run_id: str = "r", seconds: float = 60) -> Lease:
    """Claim a run for a new owner."""
    return await store.claim(run_id, owner=str(Owner.new()), seconds=seconds)


async def begun(
    store: CheckpointStore, run_id: str = "r", *bodies: bytes, seconds: float = 60
) -> Lease:
    """Claim a run for a new owner and write its first entries, by default `b"1"`."""
    lease = await claimed(store, run_id, seconds)
    await store.append(lease, bodies or [b"1"], after=0, summary=summary_of())
    return lease


async def created(
    store: CheckpointStore,
    run_id: str = "r",
    status: RunStatus = RunStatus.PENDING,
    *,
    workflow: str = "w",
    due_at: float | None = None,
    priority: int = 0,
    parent: str = "",
    is_nested: bool = False,
) -> RunSummary:
    """Create a run with one entry and without a lease, and return its summary."""
    summary = replace(
        summary_of(status, workflow=workflow),
        due_at=due_at,
        priority=priority,
        parent=parent,
        is_nested=is_nested,
    )
    assert await store.create(run_id, [b"1"], summary=summary)
    return summary


async def info_of(store: CheckpointStore, run_id: str = "r") -> RunInfo:
    """Return the info of a run, which must exist."""
    info = await store.info(run_id)
    assert info is not None
    return info


async def found(store: CheckpointStore, query: RunQuery = RunQuery()) -> list[str]:
    """Return the ids of the runs that match, in the order of the store."""
    return [info.run_id for info in await store.find(query)]


async def written(
    store: CheckpointStore, run_id: str, *bodies: bytes, summary: RunSummary | None = None
) -> None:
    """Write a run with these entries, by default a running one, and release it."""
    lease = await claimed(store, run_id)
    await store.append(lease, bodies, after=0, summary=summary or summary_of(), release=True)


async def bodies_of(store: CheckpointStore, run_id: str = "r") -> list[bytes]:
    """Return the entries of a run, oldest first."""
    return [record.body for record in await store.read(run_id)]
