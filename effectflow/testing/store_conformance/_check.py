"""The class `Check`, and the store that checks work with."""

from __future__ import annotations

import inspect
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
    Sequence,
)
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from types import ModuleType
from typing import Any, Generic, Self, TypeAlias, TypeVar
from unittest import TestCase

import anyio

from effectflow.checkpoint.errors import LeaseLost, RunBusy, RunNotFound
from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.run_info import RunDetails, RunInfo, RunQuery, RunStatus, RunSummary
from effectflow.checkpoint.store import Batch, CheckpointStore, ServiceStore, find_run

T = TypeVar("T")
S = TypeVar("S", bound=CheckpointStore)

MakeStore: TypeAlias = Callable[[], CheckpointStore]
"""Creates a store; each call over the same data, unless the store is only in memory."""

Damage: TypeAlias = Callable[[CheckpointStore, str], Awaitable[object]]
"""Makes the stored summary of a run unreadable, as a failing disk or another program does."""

PATIENCE = 30.0
"""The seconds that a check waits for something that a store does at once."""


class Check:
    """One requirement for stores. Call it with a function that creates a store.

    `__name__` and `str` state the requirement.
    """

    def __init__(self, work: Callable[..., Awaitable[None]], contract: type[object]) -> None:
        self.__name__ = work.__name__
        self._work = work
        self._wanted = tuple(inspect.signature(work).parameters)
        self._contract = contract

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
        check_methods(make(), self._contract)
        with within("the check has not ended", times=10):
            async with AsyncExitStack() as opened:
                one = Subject(make())
                is_in_memory = one.store.durability == "memory"
                match self._wanted:
                    case ("make",):
                        if not is_in_memory:
                            await self._work(lambda: Subject(make()))
                    case (_,):
                        await self._work(await opened.enter_async_context(one))
                    case (_, "damage"):
                        assert damage is not None, "pass a function that damages a run as `damage=`"
                        await self._work(await opened.enter_async_context(one), damage)
                    case _:
                        two = one if is_in_memory else Subject(make())
                        both = [await opened.enter_async_context(each) for each in (one, two)]
                        await self._work(*both)


def checks_of(contract: type[object], *modules: ModuleType) -> list[Check]:
    """Return the checks of a part of the contract: the public coroutine functions of these modules.

    Its parameters say what a check needs: `s`, an open store; `s` and `other`, two stores over the same
    data, or one of them twice if it is in memory; `make`, which creates stores over the same data, if
    they are not in memory; or `s` and `damage`, which damages a run.
    """
    return [
        Check(value, contract)
        for module in modules
        for name, value in vars(module).items()
        if inspect.iscoroutinefunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]


_INHERITED = ("salvage", "damaged_runs", "delete_unchanged", "facts")
"""The methods that the contract itself implements."""


def check_methods(store: CheckpointStore, contract: type[object]) -> None:
    """Raise AssertionError, which names the missing methods, if a store lacks any of the contract."""
    stubs = {**vars(CheckpointStore), **vars(contract)}
    names = [name for name in stubs if name[0] != "_" or name in ("__aenter__", "__aexit__")]
    missing = [
        name
        for name in names
        if getattr(store, name, None) is None
        # What a class inherits from the protocol does nothing, except for these.
        or (getattr(type(store), name, None) is stubs[name] and name not in _INHERITED)
    ]
    assert not missing, (
        f"{type(store).__name__} is not a {contract.__name__}: it lacks {', '.join(missing)}. "
        f"A class that derives from {contract.__name__} inherits {', '.join(_INHERITED)}. "
        "JOURNAL_CHECKS are for stores that only keep journals"
    )


@contextmanager
def within(problem: str, *, times: float = 1) -> Generator[None]:
    """Raise AssertionError with this problem if the block lasts longer than `times` the patience."""
    seconds = times * PATIENCE
    with anyio.move_on_after(seconds) as limit:
        yield
    assert not limit.cancelled_caught, f"{problem}, after {seconds} s"


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Call in another thread. A store that never returns from it does not keep the process alive."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as raised:
            future.set_exception(raised)

    threading.Thread(target=run, daemon=True).start()
    return future


def result_of(future: Future[T]) -> T:
    """Return or raise the end of a call in a thread, for which the event loop waits, and cannot help."""
    assert wait([future], timeout=PATIENCE).done, f"a call has not returned after {PATIENCE} s"
    return future.result()


fails = TestCase().assertRaises
"""Expects an exception inside the `with` block: `with fails(RunBusy) as caught`."""


async def at_once(work: Callable[[T], Coroutine[Any, Any, object]], given: Iterable[T]) -> None:
    """Call `work` with each of these values, concurrently."""
    async with anyio.create_task_group() as group:
        for value in given:
            group.start_soon(work, value)


async def winners(work: Callable[[int], Awaitable[T | None]], count: int) -> list[T]:
    """Call `work` with each number, concurrently. Return what it returns, unless the run was refused."""
    won: list[T] = []

    async def compete(number: int) -> None:
        with suppress(RunBusy, LeaseLost):
            if (result := await work(number)) is not None:
                won.append(result)

    await at_once(compete, range(count))
    return won


def new_owner() -> str:
    return str(Owner.new())


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


ELSEWHERE = str(Owner(1, "elsewhere", "1", "1"))
"""An owner on another host, so that this host cannot check whether it is alive."""

GO = "signal:go"
"""The topic of a signal."""

HOSTILE_RUN_IDS = (
    *("", ".", "..", "../up", "/etc/passwd", "a/b", "C:\\con", "ünïcödé-🎈", "nul\0", "new\nline"),
    *("'; DROP TABLE runs; --", "%2e%2e", "*?[a]", "A", "a", "x" * 5000),
)
"""Ids of runs that a careless store mistakes for something else."""


def summary_of(status: RunStatus) -> RunSummary:
    """Return the summary of a run with this status."""
    return RunSummary("w", status, 0.0, details=RunDetails(dead_letters=3))


PENDING, RUNNING, SUSPENDED, INTERRUPTED, PAUSED, BLOCKED, FAILED, CANCELLED, COMPLETED = map(
    summary_of, RunStatus
)


class Subject(Generic[S]):
    """A store that is checked, and what checks do with it. A run is called `r` unless it is named."""

    def __init__(self, store: S) -> None:
        self.store = store

    async def __aenter__(self) -> Self:
        await self.store.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self.store.__aexit__(*raised)

    async def create(self, run_id: str = "r", *, summary: RunSummary = PENDING) -> RunSummary:
        """Create a free run with the entry `b"1"`, and return its summary."""
        assert await self.store.create(run_id, [b"1"], summary=summary) is not None
        return summary

    async def create_all(self, run_ids: Iterable[str], summary: RunSummary = PENDING) -> None:
        """Create free runs, concurrently."""
        await at_once(partial(self.create, summary=summary), run_ids)

    async def begin(
        self,
        run_id: str = "r",
        *bodies: bytes,
        summary: RunSummary = RUNNING,
        owner: str = "",
        seconds: float = 60,
    ) -> Lease:
        """Create a run with a lease, by default of a new owner and with the entry `b"1"`."""
        bodies, owner = bodies or (b"1",), owner or new_owner()
        created = await self.store.create(
            run_id, bodies, summary=summary, owner=owner, seconds=seconds
        )
        assert created is not None
        assert created.lease is not None, "a run that was created with an owner has no lease"
        return created.lease

    async def claim(self, run_id: str = "r", *, owner: str = "", seconds: float = 60) -> Lease:
        """Claim a run, by default for a new owner."""
        owner = owner or new_owner()
        return (await self.store.claim(run_id, owner=owner, seconds=seconds)).lease

    async def append(
        self,
        lease: Lease,
        *bodies: bytes,
        after: int = 1,
        summary: RunSummary | None = None,
        release: bool = False,
        takes: Sequence[int] = (),
        seen: int | None = None,
    ) -> None:
        """Append a batch to a run, by default after its first record."""
        await self.store.append(lease, Batch(bodies, after, summary, release, takes, seen))

    def renew(self, *leases: Lease, seconds: float = 60) -> list[Lease]:
        """Renew leases as runs do: in another thread, while the event loop is blocked."""
        return result_of(in_thread(partial(self.store.renew, leases, seconds=seconds)))

    async def info(self, run_id: str = "r") -> RunInfo:
        """Return the info of a run, which must exist."""
        info = await find_run(self.store, run_id)
        assert info is not None, f"run {run_id!r} is not found by its id"
        return info

    async def summary(self, run_id: str = "r") -> RunSummary:
        """Return the summary of a run, which must exist."""
        return (await self.info(run_id)).summary

    async def find(self, query: RunQuery = RunQuery()) -> list[str]:
        """Return the ids of the runs that match, in the order of the store."""
        return [info.run_id for info in await self.store.find(query)]

    async def bodies(self, run_id: str = "r") -> list[bytes]:
        """Return the entries of a run, oldest first."""
        return [record.body for record in await self.store.read(run_id)]

    async def check_lost(self, lease: Lease) -> None:
        """Check that a lease allows nothing any more."""
        run_id, store = lease.run_id, self.store
        before, bodies = await find_run(store, run_id), await self.bodies(run_id)
        with fails(LeaseLost) as caught:
            await self.append(lease, b"x", after=len(bodies), summary=RUNNING, release=True)
        holder = before.lease.owner if before is not None and before.lease is not None else ""
        assert caught.exception.owner == holder
        assert holder in str(caught.exception)
        with fails(LeaseLost):
            await store.truncate(lease, after=1, summary=RUNNING)
        with fails(RunNotFound if before is None else LeaseLost):
            await store.delete(run_id, lease=lease)
        assert self.renew(lease) == []
        await store.release(lease)
        assert (await find_run(store, run_id), await self.bodies(run_id)) == (before, bodies)


Journal: TypeAlias = Subject[CheckpointStore]
MakeJournal: TypeAlias = Callable[[], Journal]
Service: TypeAlias = Subject[ServiceStore]
