"""A store that fails at chosen calls, as disks, servers and processes do.

::

    Fault
    ├── SaveFails     an append, or another write, fails with SaveFailed, without effect or with it
    ├── TakenOver     another owner takes over the run, and an append fails with LeaseLost
    ├── Busy          a claim fails with RunBusy
    ├── Unavailable   a call fails with StoreUnavailable
    ├── Slow          calls take longer
    └── CrashPoint    the process is dead, just before or just after an append or another write
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, cast

from effectflow.checkpoint.entries import BeforeStep, Completed, Entry, Failed
from effectflow.checkpoint.errors import (
    CheckpointError,
    LeaseLost,
    RunBusy,
    SaveFailed,
    StoreUnavailable,
)
from effectflow.checkpoint.integrity import UNSIGNED, Seal, digest_in, first_digest
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunStatus, RunSummary
from effectflow.checkpoint.store import (
    Batch,
    CheckpointStore,
    Claimed,
    DueRuns,
    Message,
    Record,
    Taken,
    Transaction,
)
from effectflow.effects import Clock, SystemClock
from effectflow.effects.clock import Duration, in_seconds
from effectflow.effects.errors import Copyable
from effectflow.effects.event_loop import running_backend
from effectflow.effects.paths import StepPath
from effectflow.testing.forwarding import ForwardingStore

if TYPE_CHECKING:
    # Programs on trio need not import it.
    from asyncio import AbstractEventLoop

Operation: TypeAlias = Literal[
    "claim",
    "renew",
    "release",
    "append",
    "read",
    "find",
    "create",
    "send",
    "mailbox",
    "claim_due",
    "delete",
    "truncate",
]
"""The operations of a store. `append` includes each `create` that also takes the lease: the first save of
a run that is started."""

Write: TypeAlias = Literal["append", "create", "send"]
"""The operations that write entries or messages."""


@dataclass(frozen=True, slots=True)
class StepAppend:
    """The first append that saves the beginning or the end of a step. `before` and `after` create it.

    Attributes:
        step: the path of the step; or, without a `run_id`, also its name, for the first step that has it.
        part: the beginning of an attempt, or its end, in success or failure.
        run_id: the run that the step belongs to; None for any run in the store.
    """

    step: str
    part: Literal["beginning", "end"]
    run_id: str | None = None

    def __str__(self) -> str:
        run = "" if self.run_id is None else f" of run {self.run_id!r}"
        return f"the {self.part} of step {self.step!r}{run}"

    def includes(self, found: StepAppend) -> bool:
        """Return whether this append, in any run if `run_id` is None, is the one that was `found`."""
        if self.run_id is not None:
            return self == found
        return self.part == found.part and self.step in (found.step, StepPath(found.step).name)


def before(step: str) -> StepAppend:
    """Return the append that saves the beginning of a step, given by its name or path.

    Before this append nothing of the step has happened. After it, the step counts as begun, and its code
    has not run.

    Example:
        >>> str(CrashPoint(before("charge"), is_durable=False))
        "before the beginning of step 'charge' was saved"
    """
    return StepAppend(step, "beginning")


def after(step: str) -> StepAppend:
    """Return the append that saves the end of a step, given by its name or path.

    Before this append the code of the step has run, and a resume does not know it. After it, a resume
    uses the recorded outcome.

    Example:
        >>> str(CrashPoint(after("charge"), is_durable=True))
        "after the end of step 'charge' was saved"
    """
    return StepAppend(step, "end")


def step_append(run_id: str, entry: Entry) -> StepAppend | None:
    """Return what an entry of a run saves, if it is the beginning or the end of a step."""
    if isinstance(entry, BeforeStep):
        return StepAppend(entry.step, "beginning", run_id)
    return StepAppend(entry.step, "end", run_id) if isinstance(entry, Completed | Failed) else None


@dataclass(frozen=True, slots=True)
class SaveFails:
    """An append fails with SaveFailed: the `append`-th one (from 1), or that `before` or `after` a step.

    It has written nothing; or, with `is_durable`, everything, as if the response of a server was lost.
    With another `operation`, that one fails, and `append` counts its calls.
    """

    append: int | StepAppend
    is_durable: bool = False
    operation: Write = "append"


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Another owner claims the run just before an append, chosen as in SaveFails.

    The append fails with LeaseLost. The other owner releases the run at once, so that it can be resumed.
    A run that the chosen save creates is taken over just after, so that the next one fails.
    """

    append: int | StepAppend


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

    `seconds` is a number or a `timedelta`. A renewal blocks its thread, so it waits for real time and not
    by the clock of the store.
    """

    operation: Operation
    seconds: Duration
    call: int | None = None


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The process dies at an append, chosen as in SaveFails, just before or just after it became durable.

    With another `operation`, it dies at that one, and `append` counts its calls. From then on every call
    raises `Crashed`. The leases of the process are free at once, like those of any dead process.
    """

    append: int | StepAppend
    is_durable: bool
    operation: Write = "append"

    def __str__(self) -> str:
        is_numbered = isinstance(self.append, int)
        append = f"{self.operation} {self.append}" if is_numbered else f"{self.append} was saved"
        return f"{'after' if self.is_durable else 'before'} {append}"


Fault: TypeAlias = SaveFails | TakenOver | Busy | Unavailable | Slow | CrashPoint


class Crashed(Copyable, BaseException):
    """The process is dead. See `FaultyStore.life`."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operation; `run_id` is None for one about many runs."""

    operation: Operation
    run_id: str | None


class FaultyStore(ForwardingStore):
    """Forwards every call to another store, except for the given faults.

    It announces the changes of the other store: a background task watches them, also for later lives.

    Parameters:
        store: the other store; it is entered and left with this one.
        faults: what fails, and when. Calls are counted from the creation of this store.
        clock: the clock that `Slow` calls wait by; with a `TestClock` they take no real time.
        seal: reads entries for faults `before` or `after` a step. If your `Checkpoints` encrypt or sign
            entries, pass a `Seal` with their keys.

    Attributes:
        calls: all calls, in order.
        met: the faults that have occurred, in order. The others are `unmet`.
        completed: the runs whose completion was appended.

    Example:
        >>> import anyio
        >>> from effectflow.stores import MemoryStore
        >>> async def main() -> None:
        ...     async with FaultyStore(MemoryStore(), [Busy(claim=2)]) as store:
        ...         summary = RunSummary("checkout", RunStatus.PENDING, created_at=0.0)
        ...         await store.create("order-17", [b"started"], summary=summary)
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
        self,
        store: CheckpointStore,
        faults: Iterable[Fault] = (),
        *,
        clock: Clock | None = None,
        seal: Seal = UNSIGNED,
    ) -> None:
        super().__init__(store)
        self.seal = seal
        self.calls: list[Call] = []
        self.met: list[Fault] = []
        self.completed: set[str] = set()
        self._faults = tuple(faults)
        self._clock = clock or SystemClock()
        self._counts: Counter[Operation] = Counter()
        self._noting = threading.Lock()
        self._is_dead = False
        self._transactions_open = 0
        self._leases: dict[str, Lease] = {}

    @property
    def unmet(self) -> tuple[Fault, ...]:
        """The faults that have not occurred yet. There should be none when a test ends."""
        return tuple(fault for fault in self._faults if fault not in self.met)

    def disarm(self) -> None:
        """Let the faults that are still `unmet` never occur."""
        self._faults = tuple(self.met)

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

    async def create(
        self,
        run_id: str,
        bodies: Sequence[bytes],
        *,
        summary: RunSummary,
        owner: str = "",
        seconds: float = 0.0,
    ) -> RunInfo | None:
        saved = await self._steps_in(run_id, bodies, 0)
        faults = await self._meet("append" if owner else "create", run_id, saved)
        with self._writing(run_id, faults):
            info = await super().create(
                run_id, bodies, summary=summary, owner=owner, seconds=seconds
            )
            if info is not None and info.lease is not None:
                self._leases[run_id] = info.lease
                if _is_taken_over(faults):
                    await self._take_over(info.lease)
        return info

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Taken:
        for fault in await self._meet("claim", run_id):
            if isinstance(fault, Busy):
                raise RunBusy(run_id, f"another owner, by {fault}", seconds)
        taken = await super().claim(run_id, owner=owner, seconds=seconds)
        self._leases[run_id] = taken.lease
        return taken

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        for fault in self._note("renew", leases[0].run_id if len(leases) == 1 else None):
            if isinstance(fault, Slow):
                time.sleep(in_seconds(fault.seconds))
            elif isinstance(fault, Unavailable):
                raise self._unavailable(fault)
        return super().renew(leases, seconds=seconds)

    async def release(self, lease: Lease) -> None:
        await self._meet("release", lease.run_id)
        await super().release(lease)

    async def append(self, lease: Lease, batch: Batch) -> None:
        run_id = lease.run_id
        saved = await self._steps_in(run_id, batch.bodies, batch.after)
        faults = await self._meet("append", run_id, saved)
        if _is_taken_over(faults):
            await self._take_over(lease)
        with self._writing(run_id, faults):
            await super().append(lease, batch)
            if batch.summary is not None and batch.summary.status is RunStatus.COMPLETED:
                self.completed.add(run_id)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Transaction]:
        self._check()
        lost: list[Lease] = []
        self._transactions_open += 1
        try:
            async with super().transaction() as transaction:
                yield _FaultyTransaction(transaction, self, lost)
        finally:
            self._transactions_open -= 1
            if self._is_dead:
                self._free_leases()
        for lease in lost:
            await self._take_over(lease)

    async def append_in(
        self, transaction: Transaction, lease: Lease, batch: Batch, lost: list[Lease]
    ) -> None:
        """Append in a transaction of the other store. Add the lease to `lost` if it is taken over."""
        run_id = lease.run_id
        saved = await self._steps_in(run_id, batch.bodies, batch.after)
        faults = await self._meet("append", run_id, saved)
        if _is_taken_over(faults):
            lost.append(lease)
            raise LeaseLost(run_id, "a new owner is about to take it over")
        with self._writing(run_id, faults):
            await transaction.append(lease, batch)

    async def _take_over(self, lease: Lease) -> None:
        await self.store.release(lease)
        await self.store.claim(lease.run_id, owner="the new owner", seconds=0)

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        await self._meet("read", run_id)
        return await super().read(run_id, after=after)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        await self._meet("find", query.run_id)
        return await super().find(query)

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        await self._meet("delete", run_id)
        await super().delete(run_id, lease=lease)

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        await self._meet("truncate", lease.run_id)
        await super().truncate(lease, after=after, summary=summary)

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        with self._writing(run_id, await self._meet("send", run_id)):
            return await super().send(run_id, topic, key=key, body=body)

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        await self._meet("mailbox", run_id)
        return await super().mailbox(run_id, after=after)

    async def claim_due(self, due: DueRuns) -> Claimed:
        await self._meet("claim_due", None)
        claimed = await super().claim_due(due)
        self._leases.update({one.lease.run_id: one.lease for one in claimed.runs})
        return claimed

    async def _steps_in(self, run_id: str, bodies: Sequence[bytes], after: int) -> list[StepAppend]:
        """Return the beginnings and ends of steps in an append, if a fault is about one."""
        named = (fault.append for fault in self._faults if isinstance(fault, _AT_APPENDS))
        if all(isinstance(append, int) for append in named):
            return []
        last = await self.store.read(run_id, after=after - 1) if after else []
        digest = digest_in(last[0]) if last else first_digest(run_id)
        found: list[StepAppend | None] = []
        for sequence, body in enumerate(bodies, after + 1):
            entry, digest = self.seal.open(Record(sequence, 0.0, body), run_id, digest)
            found.append(step_append(run_id, entry))
        return [each for each in found if each is not None]

    async def _meet(
        self, operation: Operation, run_id: str | None, saved: Sequence[StepAppend] = ()
    ) -> list[Fault]:
        """Note a call. Wait or raise as its faults say, and return them."""
        faults = self._note(operation, run_id, saved)
        for fault in faults:
            if isinstance(fault, Slow):
                await self._clock.sleep(in_seconds(fault.seconds))
            elif isinstance(fault, Unavailable):
                raise self._unavailable(fault)
        return faults

    def _note(
        self, operation: Operation, run_id: str | None, saved: Sequence[StepAppend] = ()
    ) -> list[Fault]:
        """Note a call. Return the faults that it meets."""
        # A renewal may come from another thread.
        with self._noting:
            self._check()
            self.calls.append(Call(operation, run_id))
            self._counts[operation] += 1
            number = self._counts[operation]
            faults = [
                fault
                for fault in self._faults
                if _is_met(fault, operation, number)
                or (fault not in self.met and _is_at_step(fault, saved))
            ]
            self.met += [fault for fault in faults if fault not in self.met]
        return faults

    def _unavailable(self, fault: Fault) -> StoreUnavailable:
        return StoreUnavailable(type(self.store).__name__, str(fault))

    def _check(self) -> None:
        if self._is_dead:
            raise Crashed

    @contextmanager
    def _writing(self, run_id: str, faults: list[Fault]) -> Generator[None]:
        """Trigger the faults of a write before it and after it."""
        self._strike(faults, run_id, is_durable=False)
        yield
        self._check()
        self._strike(faults, run_id, is_durable=True)

    def _strike(self, faults: list[Fault], run_id: str, *, is_durable: bool) -> None:
        """Trigger the faults that precede the effect of a write, or those that follow it."""
        for fault in faults:
            if isinstance(fault, SaveFails) and fault.is_durable is is_durable:
                raise SaveFailed(run_id, str(fault))
            if isinstance(fault, CrashPoint) and fault.is_durable is is_durable:
                self._die()

    def _die(self) -> NoReturn:
        self._is_dead = True
        _mute_dead_tasks()
        # On SQLite, this would wait for an open transaction.
        if not self._transactions_open:
            self._free_leases()
        raise Crashed

    def _free_leases(self) -> None:
        with suppress(CheckpointError):
            self.store.renew(list(self._leases.values()), seconds=0)
        self._leases.clear()


class _FaultyTransaction(Transaction):
    """A transaction whose append meets the faults of a store."""

    def __init__(self, transaction: Transaction, store: FaultyStore, lost: list[Lease]) -> None:
        self._transaction = transaction
        self._store = store
        self._lost = lost

    async def perform(self, body: Callable[[Any], Any]) -> Any:
        return await self._transaction.perform(body)

    async def append(self, lease: Lease, batch: Batch) -> None:
        await self._store.append_in(self._transaction, lease, batch, self._lost)


def _is_taken_over(faults: Iterable[Fault]) -> bool:
    return any(isinstance(fault, TakenOver) for fault in faults)


def _is_met(fault: Fault, operation: Operation, number: int) -> bool:
    """Return whether a fault concerns the `number`-th call of an operation."""
    match fault:
        case SaveFails(write, operation=of) | CrashPoint(write, operation=of):
            return operation == of and write == number
        case TakenOver(append):
            return operation == "append" and append == number
        case Busy(claim):
            return operation == "claim" and number == claim
        case Unavailable(of, call) | Slow(of, call=call):
            return operation == of and call in (None, number)


_AT_APPENDS = SaveFails | TakenOver | CrashPoint


def _is_at_step(fault: Fault, saved: Sequence[StepAppend]) -> bool:
    """Return whether a fault concerns an append with these beginnings and ends of steps."""
    append = fault.append if isinstance(fault, _AT_APPENDS) else None
    return isinstance(append, StepAppend) and any(map(append.includes, saved))


def _mute_dead_tasks() -> None:
    """Silence asyncio about tasks that end in `Crashed` and that nothing awaits any more.

    A process that has died does not report its tasks either.
    """
    if running_backend() != "asyncio":
        return
    import asyncio

    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    if not isinstance(handler, _WithoutCrashes):
        loop.set_exception_handler(_WithoutCrashes(handler))


@dataclass(frozen=True, slots=True)
class _WithoutCrashes:
    """Passes what asyncio reports to another handler, except for tasks of a dead process."""

    handler: Callable[[AbstractEventLoop, dict[str, Any]], object] | None

    def __call__(self, loop: AbstractEventLoop, context: dict[str, Any]) -> None:
        if _is_crash(context.get("exception")):
            return
        if self.handler is None:
            loop.default_exception_handler(context)
        else:
            self.handler(loop, context)


def _is_crash(raised: BaseException | None) -> bool:
    if isinstance(raised, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", raised)
        return all(map(_is_crash, group.exceptions))
    return isinstance(raised, Crashed)
