"""One life of a process that drives the run, from its start or resume to its end, stop or death."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import anyio
from returns.result import Failure, Result

from effectflow import App as Service, Checkpoints, Client, Signal, Worker, Workflow
from effectflow.checkpoint import (
    CheckpointError,
    CheckpointStore,
    ResumePlan,
    RunCancelled,
    RunEnded,
    RunNotFound,
    find_run,
)
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.testing import Crashed
from tests.exploration.processes import Journals, PatientStore, ProcessStore, read_journals
from tests.exploration.virtual_time import Backend, Hangs, LoopClock, VirtualTime, run_virtually
from tests.exploration.world import Broken, Bug, Letter, Life, World

RUN = "r"
GIVEN = "given"
"""The input of the run."""

SECONDS = 2000.0
"""How long a life may take. Programs end much earlier."""

SIGNALS = {topic: Signal(topic, int) for topic in "ab"}

AnyWorkflow = Workflow[Any, Any, Any, Any]
Driver = Literal["start", "resume", "worker", "plan", "result"]


@dataclass(frozen=True, slots=True)
class LifePlan:
    """What happens in a life from outside.

    Attributes:
        seed: chooses how long things take.
        by: who drives the run; "plan" only asks what a resume would do, and "result" how the run ended.
        pause: the seconds before it begins, in which no process has the run.
        dies_after: the number of the append with which the process dies.
        is_durable: whether that append takes effect.
        dies_at: the seconds after which the process dies.
        stops_at: the seconds after which it is stopped, as by a deployment.
        is_native: whether asyncio itself cancels it, and not a scope.
        suspend_after, grace: options of the worker.
        is_slow: whether the store takes some time for an append.
    """

    seed: str = ""
    by: Driver = "start"
    pause: float = 0.0
    dies_after: int | None = None
    is_durable: bool = True
    dies_at: float | None = None
    stops_at: float | None = None
    is_native: bool = False
    suspend_after: float = 0.0
    grace: float = 0.0
    is_slow: bool = False

    def __str__(self) -> str:
        words = [f"{self.by} after {self.pause:g} s"]
        if self.dies_after is not None:
            words.append(
                f"dies {'after' if self.is_durable else 'before'} append {self.dies_after}"
            )
        if self.dies_at is not None:
            words.append(f"dies at {self.dies_at:g} s")
        if self.stops_at is not None:
            words.append(f"stopped at {self.stops_at:g} s" + (" by asyncio" * self.is_native))
        return ", ".join(words)


EndKind = Literal[
    "value", "failed", "defect", "cancelled", "refused", "stopped", "died", "hangs", "planned"
]


@dataclass(frozen=True, slots=True)
class End:
    """How a life ended, and with it perhaps the run.

    Attributes:
        kind: "value", "failed", "defect" or "cancelled" if the run has ended; "refused" if the engine
            refused to go on; "stopped" and "died" as planned; "hangs" if it did not end.
        text: the value, the names of what failed, or the error.
        plan: what a resume would do, if that was asked.
    """

    kind: EndKind
    text: str = ""
    plan: ResumePlan | None = None

    @property
    def is_of_run(self) -> bool:
        return self.kind in ("value", "failed", "defect", "cancelled")

    @property
    def is_failure(self) -> bool:
        return self.kind in ("failed", "defect")

    @property
    def names(self) -> list[str]:
        """The names of what failed."""
        return self.text.split("+") if self.is_failure else []

    def is_like(self, other: End) -> bool:
        return (self.kind, self.text) == (other.kind, other.text)

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


@dataclass(frozen=True)
class Storage:
    """Where the runs are kept, from life to life: in memory or in an SQLite file."""

    memory: MemoryStore | None = None
    file: Path | None = None

    @asynccontextmanager
    async def opened(self, time: VirtualTime) -> AsyncGenerator[CheckpointStore]:
        """Open the store for one process."""
        if self.memory is not None:
            yield self.memory
            return
        assert self.file is not None
        async with PatientStore(SqliteStore(self.file, durability="process"), time) as store:
            yield store


@dataclass(frozen=True)
class Subject:
    """What lives: a workflow, and what surrounds it.

    Attributes:
        workflow: the workflow of the run.
        environment: makes the environment of a life.
        called: the other workflows that a worker needs to know.
    """

    workflow: AnyWorkflow
    environment: Callable[[Checkpoints, Life], Any]
    called: Sequence[AnyWorkflow] = ()


@dataclass
class Lived:
    """What came of a life.

    Attributes:
        end: how it ended.
        life: what it did.
        appends: how many appends it made.
        journals: what the store has at its end.
        work: what the steps did in it, in order.
        errors: the errors of the engine that were only logged.
    """

    end: End
    life: Life
    appends: int = 0
    journals: Journals = field(default_factory=lambda: Journals({}, {}))
    work: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])


def live(
    subject: Subject,
    world: World,
    plan: LifePlan,
    storage: Storage,
    *,
    backend: Backend,
    cancel_at: float | None = None,
) -> Lived:
    """Live one life, and leave the world as it is then.

    Parameters:
        cancel_at: when somebody requests the cancellation of the run, in seconds since `EPOCH`; None if
            nobody does.
    """
    world.now += plan.pause
    before = len(world.log)
    lived = Lived(End("hangs"), Life(world, plan.seed))
    process = _Process(subject, world, plan, lived, backend, cancel_at)

    async def main(time: VirtualTime) -> None:
        async with storage.opened(time) as store:
            ended_at = await process.live_on(store)
            lived.journals = await read_journals(store)
        world.now = ended_at

    with _LoggedErrors() as logged:
        try:
            run_virtually(backend, main, now=world.now, seconds=2 * SECONDS)
        except Hangs as hangs:
            lived.end = End("hangs", str(hangs))
    lived.life.is_dead = True
    if lived.end.is_of_run and not lived.journals.has_ended(RUN):
        # Somebody has cancelled a failed run, and the worker has taken it up again.
        lived.end = End("stopped")
    lived.work = world.log[before:]
    lived.errors = [] if lived.end.kind == "died" else logged.errors
    return lived


@dataclass
class _Process:
    """A process. The attributes are the parameters of `live`, and what comes of it."""

    subject: Subject
    world: World
    plan: LifePlan
    lived: Lived
    backend: Backend
    cancel_at: float | None

    async def live_on(self, base: CheckpointStore) -> float:
        """Live on a store. Return when the life ended."""
        life, plan = self.lived.life, self.plan
        alive = anyio.CancelScope()
        died_at: list[float] = []

        def bury() -> None:
            life.is_dead = True
            died_at.append(anyio.current_time())
            alive.cancel()

        store = ProcessStore(
            base,
            dies_after=plan.dies_after,
            is_durable=plan.is_durable,
            latency=lambda: life.choose("save", [0, 0.1, 0.5]) if plan.is_slow else 0,
            sent_at=self._sent_at,
            on_death=bury,
        )
        end = End("died")
        try:
            with anyio.fail_after(SECONDS), alive:
                await self._deliver(base)
                end = await self._live_among_others(store, base)
        except TimeoutError:
            end = End("hangs", await _reason(base))
        except (Crashed, Exception, BaseExceptionGroup) as error:
            end = _refused(error)
        self.lived.end = End("died") if store.is_dead else end
        self.lived.appends = store.appends
        self.world.take([int(key) for key in store.taken if key.isdigit()])
        return died_at[0] if died_at else anyio.current_time()

    async def _live_among_others(self, store: ProcessStore, base: CheckpointStore) -> End:
        """Drive the run, while others send messages and cancel it."""
        async with anyio.create_task_group() as others:
            others.start_soon(self._send_all, base)
            if self.cancel_at is not None:
                others.start_soon(self._cancel, base, self.cancel_at)
            if self.plan.dies_at is not None:
                others.start_soon(_at, self.plan.dies_at, store.die)
            end = await self._until_stopped(store)
            others.cancel_scope.cancel()
            return end
        raise Crashed

    async def _until_stopped(self, store: ProcessStore) -> End:
        drive = partial(self._driver(), Checkpoints(store))
        stops_at = self.plan.stops_at
        if stops_at is None:
            return await drive()
        if self.plan.is_native and self.backend == "asyncio" and self.plan.by != "worker":
            return await _stopped_by_asyncio(drive, stops_at)
        with anyio.move_on_after(stops_at):
            return await drive()
        return End("stopped")

    # Who drives the run.

    def _driver(self) -> Callable[[Checkpoints], Awaitable[End]]:
        match self.plan.by:
            case "worker":
                return self._in_worker
            case "plan":
                return self._only_plan
            case "result":
                return self._only_result
            case _:
                return self._directly

    async def _directly(self, checkpoints: Checkpoints) -> End:
        workflow = self.subject.workflow
        if self.plan.by == "resume" and await find_run(checkpoints.store, RUN) is not None:
            effect = workflow.resume(RUN)
        else:
            effect = workflow.start(GIVEN, run_id=RUN)
        env = self.subject.environment(checkpoints, self.lived.life)
        return await end_of(lambda: effect.run(env, clock=LoopClock()))

    async def _in_worker(self, checkpoints: Checkpoints) -> End:
        workflows = [self.subject.workflow, *self.subject.called]
        env = self.subject.environment(checkpoints, self.lived.life)
        worker = Worker(
            Service(workflows, environment=lambda _: env, checkpoints=checkpoints),
            clock=LoopClock(),
            suspend_after=self.plan.suspend_after,
            grace=self.plan.grace,
            max_crashes=1000,
        )
        async with worker:
            handle = await worker.client.submit(self.subject.workflow, GIVEN, run_id=RUN)
            return await end_of(handle.result)

    async def _only_plan(self, checkpoints: Checkpoints) -> End:
        env = self.subject.environment(checkpoints, self.lived.life)
        try:
            planned = await self.subject.workflow.plan(RUN).run(env, clock=LoopClock())
        except Exception as defect:
            # A bug of the body also ends its replay.
            end = _end_of_defect(defect)
            return End("planned") if end.kind == "defect" else end
        plan = planned.unwrap()
        is_fine = plan.problem is None or isinstance(plan.problem, RunCancelled)
        return End("planned", "" if is_fine else repr(plan.problem), plan)

    async def _only_result(self, checkpoints: Checkpoints) -> End:
        handle = Client(checkpoints).handle(self.subject.workflow, RUN)
        return await end_of(partial(handle.result, 0))

    # What others do meanwhile.

    def _sent_at(self, key: str) -> float | None:
        return self.world.letter(int(key)).time if key.isdigit() else self.cancel_at

    async def _deliver(self, base: CheckpointStore) -> None:
        """Do what others have done while no process had the run."""
        if await find_run(base, RUN) is None:
            return
        for letter in self.world.inbox[len(self.world.sent) :]:
            if letter.time <= anyio.current_time():
                await self._send(base, letter)
        if self.cancel_at is not None and self.cancel_at <= anyio.current_time():
            await self._cancel(base, self.cancel_at)

    async def _send_all(self, base: CheckpointStore) -> None:
        """Send the messages whose time has come, in order."""
        for letter in self.world.inbox[len(self.world.sent) :]:
            await anyio.sleep(max(0, letter.time - anyio.current_time()))
            await self._send(base, letter)

    async def _send(self, base: CheckpointStore, letter: Letter) -> None:
        signal, number, key = SIGNALS[letter.topic], letter.number, str(letter.number)
        handle = Client(Checkpoints(base)).handle(self.subject.workflow, RUN)
        await _once_it_exists(partial(handle.send, signal, number, idempotency_key=key))
        self.world.sent.append(number)

    async def _cancel(self, base: CheckpointStore, time: float) -> None:
        await anyio.sleep(max(0, time - anyio.current_time()))
        handle = Client(Checkpoints(base)).handle(self.subject.workflow, RUN)
        await _once_it_exists(handle.cancel)


async def _at(seconds: float, act: Callable[[], object]) -> None:
    await anyio.sleep(seconds)
    act()


async def _once_it_exists(call: Callable[[], Awaitable[object]]) -> None:
    """Call again until the run exists. If it has ended, do nothing."""
    while True:
        try:
            with suppress(RunEnded):
                await call()
            return
        except RunNotFound:
            await anyio.sleep(0.1)


async def _stopped_by_asyncio(work: Callable[[], Awaitable[End]], seconds: float) -> End:
    task = asyncio.ensure_future(work())
    stop = asyncio.get_running_loop().call_later(seconds, task.cancel)
    try:
        await asyncio.wait([task])
    finally:
        stop.cancel()
        if not task.done():  # the process dies
            task.cancel()
    return End("stopped") if task.cancelled() else task.result()


async def _reason(base: CheckpointStore) -> str:
    """Return what a store says of a run that hangs."""
    info = await find_run(base, RUN)
    return "" if info is None else f"{info.summary.status} {getattr(info.summary, 'blocked', '')}"


# Ends.


async def end_of(running: Callable[[], Awaitable[Result[Any, Any]]]) -> End:
    """Return how a run ended, or why the engine refused to go on."""
    try:
        result = await running()
    except Exception as defect:
        return _end_of_defect(defect)
    if not isinstance(result, Failure):
        return End("value", str(result.unwrap()))
    match result.failure():
        case RunCancelled():
            return End("cancelled")
        case CheckpointError() as error:
            return _refused(error)
        case Broken() as failure:
            return End("failed", str(failure.args[0]))
        case error:
            return End("failed", str(error))


def _end_of_defect(defect: Exception) -> End:
    """Return the end of a run that raised a defect: a bug of the program, or one of the engine."""
    is_of_program = isinstance(defect, Bug | Broken) or "Bug: " in str(defect)
    return End("defect", shown(defect)) if is_of_program else _refused(defect)


def shown(error: BaseException) -> str:
    """Return what has failed, also if the error comes from a journal."""
    return str(error).rpartition(": ")[2]


def _refused(error: BaseException) -> End:
    name = type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        return End("refused", f"{name}: {[repr(inner) for inner in error.exceptions]}")
    return End("refused", f"{name}: {error}")


class _LoggedErrors(logging.Handler):
    """Collects the bugs that the engine or asyncio only logs, and keeps the rest out of sight."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        # Others are those of programs, or those by which an engine stops a life.
        if error is not None and type(error).__module__ == "builtins":
            self.errors.append(f"{type(error).__name__}: {error}, {record.getMessage()}")

    def __enter__(self) -> Self:
        for logger in self._loggers():
            logger.addHandler(self)
            logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        for logger in self._loggers():
            logger.removeHandler(self)
            logger.propagate = True

    @staticmethod
    def _loggers() -> list[logging.Logger]:
        return [logging.getLogger("effectflow"), logging.getLogger("asyncio")]
