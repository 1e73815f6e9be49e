"""A store that fails at chosen calls, as disks, servers and processes do.

::

    Fault
    ├── SaveFails     an append fails with SaveFailed, without effect or with it
    ├── TakenOver     another owner takes over the run, and an append fails with LeaseLost
    ├── Busy          a claim fails with RunBusy
    ├── Unavailable   a call fails with StoreUnavailable
    ├── Slow          calls take longer
    └── CrashPoint    the process is dead, just before or just after an append
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, NoReturn, TypeAlias

from effectflow.checkpoint import (
    CheckpointError,
    CheckpointStore,
    Lease,
    Record,
    RunBusy,
    RunInfo,
    RunQuery,
    RunStatus,
    RunSummary,
    SaveFailed,
    StoreUnavailable,
)
from effectflow.effects import Clock, SystemClock
from effectflow.testing.forwarding import ForwardingStore

Operation: TypeAlias = Literal[
    "claim", "renew", "release", "append", "read", "info", "find", "delete"
]
"""The operations of a store."""


@dataclass(frozen=True, slots=True)
class SaveFails:
    """The `append`-th append (from 1) fails with SaveFailed.

    It has written nothing; or, with `is_durable`, everything, as if the answer of a server was lost.
    """

    append: int
    is_durable: bool = False


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Another owner claims the run just before the `append`-th append, which fails with LeaseLost.

    The other owner releases the run at once, so that it can be resumed.
    """

    append: int


@dataclass(frozen=True, slots=True)
class Busy:
    """The `claim`-th claim (from 1) fails with RunBusy, as if another owner held the run."""

    claim: int = 1


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The `call`-th call (from 1) of an operation fails with StoreUnavailable, without effect."""

    operation: Operation
    call: int = 1


@dataclass(frozen=True, slots=True)
class Slow:
    """The `call`-th call of an operation, or each call if that is None, takes `seconds` longer.

    A renewal blocks its thread, so it waits for real time and not by the clock of the store.
    """

    operation: Operation
    seconds: float
    call: int | None = None


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The process dies at the `append`-th append, just before or just after it became durable.

    From then on every call raises `Crashed`. The leases of the process are free at once, as those of any
    dead process.
    """

    append: int
    is_durable: bool

    def __str__(self) -> str:
        return f"{'after' if self.is_durable else 'before'} append {self.append}"


Fault: TypeAlias = SaveFails | TakenOver | Busy | Unavailable | Slow | CrashPoint


class Crashed(BaseException):
    """The process is dead. See `FaultyStore.life`."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operation; `run_id` is None for `find`."""

    operation: Operation
    run_id: str | None


class FaultyStore(ForwardingStore):
    """Forwards every call to another store, except for the given faults.

    Parameters:
        store: the other store; it is entered and left with this one.
        faults: what fails, and when. Calls are counted from the creation of this store.
        clock: the clock that `Slow` calls wait by; with a `TestClock` they take no real time.

    Attributes:
        calls: all calls, in order.
        met: the faults that have occurred, in order. The others are `unmet`.
        completed: the runs whose completion was appended.

    Example:
        >>> import anyio
        >>> from effectflow.stores import MemoryStore
        >>> async def main() -> None:
        ...     async with FaultyStore(MemoryStore(), [Busy(claim=2)]) as store:
        ...         await store.claim("order-17", owner="me", seconds=30)
        ...         try:
        ...             await store.claim("order-17", owner="me", seconds=30)
        ...         except RunBusy as error:
        ...             print("refused:", error.run_id)
        ...         assert not store.unmet
        >>> anyio.run(main)
        refused: order-17
    """

    def __init__(
        self, store: CheckpointStore, faults: Iterable[Fault] = (), *, clock: Clock | None = None
    ) -> None:
        super().__init__(store)
        self.calls: list[Call] = []
        self.met: list[Fault] = []
        self.completed: set[str] = set()
        self._faults = tuple(faults)
        self._clock = clock or SystemClock()
        self._counts: Counter[Operation] = Counter()
        self._noting = threading.Lock()
        self._is_dead = False
        self._leases: dict[str, Lease] = {}

    @property
    def unmet(self) -> tuple[Fault, ...]:
        """The faults that have not occurred yet. There should be none when a test ends."""
        return tuple(fault for fault in self._faults if fault not in self.met)

    @contextmanager
    def life(self) -> Generator[None]:
        """Run one life of the process. A `CrashPoint` ends it, and its exception is suppressed.

        After the `with` block the next life begins, which finds the store as the first one left it::

            with store.life():
                await checkout.start(cart, run_id="r").run(app)  # crashes
            await checkout.start(cart, run_id="r").run(app)  # continues
        """
        try:
            yield
        except (Exception, Crashed, BaseExceptionGroup):
            if not self._is_dead:
                raise
        self._is_dead = False

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        for fault in await self._meet("claim", run_id):
            if isinstance(fault, Busy):
                raise RunBusy(run_id, f"another owner, by {fault}", seconds)
        self._leases[run_id] = await super().claim(run_id, owner=owner, seconds=seconds)
        return self._leases[run_id]

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        for fault in self._note("renew", lease.run_id):
            if isinstance(fault, Slow):
                time.sleep(fault.seconds)
            elif isinstance(fault, Unavailable):
                raise self._unavailable(fault)
        return super().renew(lease, seconds=seconds)

    async def release(self, lease: Lease) -> None:
        await self._meet("release", lease.run_id)
        await super().release(lease)

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
    ) -> None:
        faults = await self._meet("append", lease.run_id)
        await self._strike(faults, lease, is_durable=False)
        await super().append(lease, bodies, after=after, summary=summary, release=release)
        if summary is not None and summary.status is RunStatus.COMPLETED:
            self.completed.add(lease.run_id)
        self._check()
        await self._strike(faults, lease, is_durable=True)

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        await self._meet("read", run_id)
        return await super().read(run_id, after=after)

    async def info(self, run_id: str) -> RunInfo | None:
        await self._meet("info", run_id)
        return await super().info(run_id)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        await self._meet("find", None)
        return await super().find(query)

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        await self._meet("delete", run_id)
        await super().delete(run_id, lease=lease)

    async def _meet(self, operation: Operation, run_id: str | None) -> list[Fault]:
        """Note a call. Wait or raise as its faults say, and return them."""
        faults = self._note(operation, run_id)
        for fault in faults:
            if isinstance(fault, Slow):
                await self._clock.sleep(fault.seconds)
            elif isinstance(fault, Unavailable):
                raise self._unavailable(fault)
        return faults

    def _note(self, operation: Operation, run_id: str | None) -> list[Fault]:
        """Note a call. Return the faults that it meets."""
        # A renewal may come from another thread.
        with self._noting:
            self._check()
            self.calls.append(Call(operation, run_id))
            self._counts[operation] += 1
            number = self._counts[operation]
            faults = [fault for fault in self._faults if _is_met(fault, operation, number)]
            self.met += [fault for fault in faults if fault not in self.met]
        return faults

    def _unavailable(self, fault: Fault) -> StoreUnavailable:
        return StoreUnavailable(type(self.store).__name__, str(fault))

    def _check(self) -> None:
        if self._is_dead:
            raise Crashed

    async def _strike(self, faults: list[Fault], lease: Lease, *, is_durable: bool) -> None:
        """Let those faults happen that precede the effect of an append, or those that follow it."""
        for fault in faults:
            if isinstance(fault, TakenOver) and not is_durable:
                await self.store.release(lease)
                await self.store.claim(lease.run_id, owner="the new owner", seconds=0)
            elif isinstance(fault, SaveFails) and fault.is_durable is is_durable:
                raise SaveFailed(lease.run_id, str(fault))
            elif isinstance(fault, CrashPoint) and fault.is_durable is is_durable:
                self._die()

    def _die(self) -> NoReturn:
        self._is_dead = True
        for lease in list(self._leases.values()):
            with suppress(CheckpointError):
                self.store.renew(lease, seconds=0)
        self._leases.clear()
        raise Crashed


def _is_met(fault: Fault, operation: Operation, number: int) -> bool:
    """Return whether a fault concerns the `number`-th call of an operation."""
    match fault:
        case SaveFails(append) | TakenOver(append) | CrashPoint(append):
            return operation == "append" and number == append
        case Busy(claim):
            return operation == "claim" and number == claim
        case Unavailable(of, call) | Slow(of, call=call):
            return operation == of and call in (None, number)
