"""The class `Check`, the two parts of the suite, and what their checks share."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import anyio

from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.store import (
    Batch,
    CheckpointStore,
    RunDetails,
    RunInfo,
    RunQuery,
    RunStatus,
    RunSummary,
    ServiceStore,
    find_run,
)

T = TypeVar("T")
S = TypeVar("S", bound=CheckpointStore)
X = TypeVar("X", bound=Exception)

MakeStore: TypeAlias = Callable[[], CheckpointStore]
"""Creates a store; each call over the same data, unless the store is only in memory."""

Damage: TypeAlias = Callable[[CheckpointStore, str], Awaitable[object]]
"""Makes the stored summary of a run unreadable, as a failing disk or another program does."""

_INHERITED = ("salvage", "damaged_runs")
"""The methods that the contract itself implements."""

PATIENCE = 30.0
"""The seconds that a check waits for something that a store does at once."""


class Check:
    """One requirement for stores. Call it with a function that creates a store.

    `__name__` and `str` state the requirement.
    """

    def __init__(self, name: str, part: Part[Any], work: Callable[..., Awaitable[None]]) -> None:
        self.__name__ = name
        self._part = part
        self._work = work

    def __repr__(self) -> str:
        return f"<check {self.__name__}>"

    def __str__(self) -> str:
        return self.__name__

    async def __call__(self, make: MakeStore, *, damage: Damage | None = None) -> None:
        """Raise AssertionError, or pass on what the store raises, if it does not meet the requirement.

        Also raise AssertionError for a store that lacks a method, or keeps the check waiting.

        Parameters:
            make: creates a store.
            damage: damages a run; only for `DAMAGE_CHECKS`, which need it.
        """
        self._part.check_methods(make())
        given = () if self._part is not DAMAGE else (damage,)
        assert None not in given, f"{self!r} needs a function that damages a run: pass `damage=`"
        with within("the check has not ended", times=10):
            await self._work(make, *given)


class Part(Generic[S]):
    """One part of the suite.

    Attributes:
        contract: the name of the protocol that it is about.
        checks: its checks.
    """

    def __init__(self, contract: type[object]) -> None:
        self.contract = contract.__name__
        self.checks: list[Check] = []
        self._methods = {
            name: method
            for name, method in {**vars(CheckpointStore), **vars(contract)}.items()
            if not name.startswith("_") or name in ("__aenter__", "__aexit__")
        }

    def check_methods(self, store: CheckpointStore) -> None:
        """Raise AssertionError, which names the missing methods, if a store lacks any."""
        kind = type(store)
        missing = [
            name
            for name, stub in self._methods.items()
            if getattr(store, name, None) is None
            # What a class inherits from the protocol does nothing, except for these.
            or (getattr(kind, name, None) is stub and name not in _INHERITED)
        ]
        assert not missing, (
            f"{kind.__name__} is not a {self.contract}: it lacks {', '.join(missing)}. A class that "
            f"derives from {self.contract} inherits {' and '.join(_INHERITED)}"
            + (". A store of journals only needs JOURNAL_CHECKS" if self is SERVICE else "")
        )

    def check(self, work: Callable[[S], Awaitable[None]]) -> Check:
        """Make a check of one open store."""

        async def with_store(make: Callable[[], S]) -> None:
            async with make() as store:
                await work(store)

        return self._add(work, with_store)

    def check_of_two(self, work: Callable[[S, S], Awaitable[None]]) -> Check:
        """Make a check of two open stores over the same data. A store in memory is passed twice."""

        async def with_stores(make: Callable[[], S]) -> None:
            store = make()
            async with store, store if store.durability == "memory" else make() as other:
                await work(store, other)

        return self._add(work, with_stores)

    def check_reopening(self, work: Callable[[Callable[[], S]], Awaitable[None]]) -> Check:
        """Make a check that opens and closes the store itself. It passes stores in memory."""

        async def unless_in_memory(make: Callable[[], S]) -> None:
            if make().durability != "memory":
                await work(make)

        return self._add(work, unless_in_memory)

    def check_damage(self, work: Callable[[S, Damage], Awaitable[None]]) -> Check:
        """Make a check of an open store whose runs are damaged."""

        async def with_store(make: Callable[[], S], damage: Damage) -> None:
            async with make() as store:
                await work(store, damage)

        return self._add(work, with_store)

    def _add(self, named: Callable[..., object], work: Callable[..., Awaitable[None]]) -> Check:
        made = Check(named.__name__, self, work)
        self.checks.append(made)
        return made


JOURNAL = Part[CheckpointStore](CheckpointStore)
SERVICE = Part[ServiceStore](ServiceStore)
DAMAGE = Part[CheckpointStore](CheckpointStore)


@contextmanager
def within(problem: str, *, times: float = 1) -> Generator[None]:
    """Raise AssertionError with this problem if the block lasts longer than `times` the patience."""
    seconds = times * PATIENCE
    with anyio.move_on_after(seconds) as limit:
        yield
    assert not limit.cancelled_caught, f"{problem}, after {seconds} s"


def deadline() -> float:
    """Return when the patience ends that begins now, by `time.monotonic`."""
    return time.monotonic() + PATIENCE


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


def renew(store: CheckpointStore, *leases: Lease, seconds: float = 60) -> list[Lease]:
    """Renew leases as runs do: in another thread, while the event loop is blocked."""
    return InThread(partial(store.renew, leases, seconds=seconds)).result()


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


async def at_once(work: Callable[[T], Coroutine[object, object, None]], given: Iterable[T]) -> None:
    """Call `work` with each of these values, concurrently."""
    async with anyio.create_task_group() as group:
        for value in given:
            group.start_soon(work, value)


ELSEWHERE = str(Owner(1, "elsewhere", "1", "1"))
"""An owner on another host, so that this host cannot check whether it is alive."""


def dead_owner() -> str:
    """Return an owner whose process on this host has ended."""
    return str(Owner(2**80, Owner.new().host, "1", "1"))


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


def summary_of(
    status: RunStatus = RunStatus.RUNNING,
    *,
    workflow: str = "w",
    created_at: float = 0.0,
    due_at: float | None = None,
    priority: int = 0,
    parent: str = "",
    tenant: str = "",
) -> RunSummary:
    """Return a summary, by default of a running run."""
    details = RunDetails(dead_letters=3)
    return RunSummary(workflow, status, created_at, due_at, priority, parent, tenant, details)


async def created(
    store: CheckpointStore, run_id: str = "r", *bodies: bytes, summary: RunSummary | None = None
) -> RunSummary:
    """Create a free run, by default a pending one with the entry `b"1"`, and return its summary."""
    summary = summary or summary_of(RunStatus.PENDING)
    assert await store.create(run_id, bodies or [b"1"], summary=summary) is not None
    return summary


async def begun(
    store: CheckpointStore,
    run_id: str = "r",
    *bodies: bytes,
    summary: RunSummary | None = None,
    owner: str = "",
    seconds: float = 60,
) -> Lease:
    """Create a run with its lease, by default a running one of a new owner with the entry `b"1"`."""
    info = await store.create(
        run_id,
        bodies or [b"1"],
        summary=summary or summary_of(),
        owner=owner or str(Owner.new()),
        seconds=seconds,
    )
    assert info is not None
    assert info.lease is not None, f"run {run_id!r} was created with an owner, and has no lease"
    return info.lease


async def claimed(
    store: CheckpointStore, run_id: str = "r", *, owner: str = "", seconds: float = 60
) -> Lease:
    """Claim a run, by default for a new owner."""
    taken = await store.claim(run_id, owner=owner or str(Owner.new()), seconds=seconds)
    return taken.lease


async def appended(
    store: CheckpointStore,
    lease: Lease,
    *bodies: bytes,
    after: int = 1,
    summary: RunSummary | None = None,
    **options: Any,
) -> None:
    """Append a batch to a run, by default without a record after the first."""
    await store.append(lease, Batch(bodies, after, summary, **options))


async def info_of(store: CheckpointStore, run_id: str = "r") -> RunInfo:
    """Return the info of a run, which must exist."""
    info = await find_run(store, run_id)
    assert info is not None, f"run {run_id!r} is not found by its id"
    return info


async def found(store: CheckpointStore, query: RunQuery = RunQuery()) -> list[str]:
    """Return the ids of the runs that match, in the order of the store."""
    return [info.run_id for info in await store.find(query)]


async def bodies_of(store: CheckpointStore, run_id: str = "r") -> list[bytes]:
    """Return the entries of a run, oldest first."""
    return [record.body for record in await store.read(run_id)]


HOSTILE_RUN_IDS = (
    "",
    ".",
    "..",
    "../up",
    "/etc/passwd",
    "a/b",
    "C:\\con",
    "ünïcödé-🎈",
    "'; DROP TABLE runs; --",
    "nul\0",
    "new\nline",
    "%2e%2e",
    "*?[a]",
    "A",
    "a",
    "x" * 5000,
)
"""Ids of runs that a careless store mistakes for something else."""
