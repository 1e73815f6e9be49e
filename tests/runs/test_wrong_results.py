"""Results that were silently wrong: each in a run that crashes, is stopped, or waits in a worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from returns.result import Result, Success

from effectflow import (
    Checkpoints,
    Client,
    Do,
    Effect,
    Signal,
    TimedOut,
    bracket,
    compensate,
    do,
    fail,
    par,
    par_all,
    publish,
    pure,
    race,
    saga,
    sleep,
    spawn,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import (
    CheckpointStore,
    CompensationFailed,
    NotSerializable,
    RunCancelled,
    RunStatus,
)
from effectflow.effects import first_success, traverse
from effectflow.service import Handle
from effectflow.stores import MemoryStore
from effectflow.testing import (
    CrashPoint,
    FaultyStore,
    TestClock,
    after,
    before,
    crash_everywhere,
)
from tests.apps import App, Broken, World, app_on, both_backends, cut_off, note
from tests.runs.journals import AnyEffect, AnyWorkflow, act, clock_at, made_of
from tests.service.conftest import Service
from tests.service.lives import info_of, suspended, until, working

pytestmark = [pytest.mark.anyio, both_backends]

pause: Signal[str] = Signal("pause", str)
other: Signal[str] = Signal("other", str)


@do
def in_order(*effects: AnyEffect) -> Do[App, Any, Any]:
    """Run effects one after another, and yield what the last one yields."""
    value: object = None
    for effect in effects:
        value = yield from effect
    return value


def code(*effects: AnyEffect) -> AnyWorkflow:
    """Return a workflow of these effects, one after another."""
    return made_of(lambda: in_order(*effects))


@step
def decline() -> Effect[App, Broken, str]:
    """Note that it was executed, and fail."""
    return note("charge").and_then(lambda _: fail(Broken("declined")))


def done_as(name: str) -> Callable[[object], AnyEffect]:
    """Return a function that makes a step from any value: a release, or an undo."""
    return lambda _: act(name)


async def died_everywhere(made: AnyWorkflow) -> list[str]:
    """Let a process die at each write of a run, and go on. Return all that was done in any life."""
    worlds: list[World] = []

    def environment(store: CheckpointStore) -> App:
        app = app_on(store)
        worlds.append(app.world)
        return app

    await crash_everywhere(made, None, environment)
    return [action for world in worlds for action in world.done]


async def woken(
    service: Service, made: AnyWorkflow, *signals: Signal[str], others: Sequence[AnyWorkflow] = ()
) -> Result[Any, Any]:
    """Let a run be suspended and woken by each of these signals, each time in another worker."""
    async with working(service, made, *others) as worker:
        handle: Handle[Any, Any] = await worker.client.submit(made, None, run_id="r")
        info = await suspended(service, "r")
    for number, signal in enumerate(signals, 1):
        await handle.send(signal, "go")
        async with working(service, made, *others):
            if number == len(signals):
                return await handle.result(timeout=10)
            info = await suspended(service, "r", after=info)
    raise AssertionError("a run needs a signal to end")


# A saga that succeeded is not undone.


def beside_a_saga(wait: AnyEffect) -> AnyWorkflow:
    """Return a workflow whose saga succeeds; later, the branch beside it fails."""
    succeeds = saga(compensate(act("book"), done_as("cancel")))
    return code(par(in_order(wait, fail(Broken("too late"))), succeeds))


async def test_a_saga_that_succeeded_is_not_undone_when_its_sibling_fails_after_a_suspension() -> (
    None
):
    service = Service(MemoryStore())

    ended = await woken(service, beside_a_saga(pause.wait()), pause)

    assert isinstance(ended.failure(), Broken)
    assert service.world.done == ["book"]


async def test_a_saga_that_succeeded_is_not_undone_after_a_crash() -> None:
    done = await died_everywhere(beside_a_saga(sleep(1)))

    assert set(done) == {"book"}


async def test_a_saga_that_succeeded_is_undone_with_the_saga_around_it() -> None:
    """That one has taken over its undo, and fails after the suspension."""
    inner = saga(compensate(act("book"), done_as("cancel")))
    made = code(saga(in_order(inner, pause.wait(), fail(Broken("too late")))))
    service = Service(MemoryStore())

    ended = await woken(service, made, pause)

    assert isinstance(ended.failure(), Broken)
    assert service.world.done == ["book", "cancel"]


# What is published in finalizers.


PUBLISHING: dict[str, AnyEffect] = {
    "finalizer": act("work").on_exit(publish("progress", 1)),
    "finalizer of a failure": decline().on_exit(publish("progress", 1)).fallback("no"),
    "finalizer after a timeout": (
        sleep(60).on_exit(publish("progress", 1)).timeout(0).result().map(lambda _: "late")
    ),
    "acquisition": bracket(publish("progress", 1), pure, lambda _: act("use")),
    "release": bracket(act("open"), lambda _: publish("progress", 1), lambda _: act("use")),
    "release with a step": bracket(
        act("open"),
        lambda _: in_order(act("close"), publish("progress", 1)),
        lambda _: act("use"),
    ),
    "undo": saga(
        in_order(
            compensate(act("book"), lambda _: publish("progress", 1)), fail(Broken("no flight"))
        )
    ).fallback("no"),
    "step": with_checkpointing("outer", act("work").on_exit(publish("progress", 1))),
}
each_place = pytest.mark.parametrize("publishing", PUBLISHING.values(), ids=PUBLISHING)


@each_place
async def test_a_run_waits_after_it_has_published_something(publishing: AnyEffect) -> None:
    made = code(publishing, pause.wait(), act("more"), other.wait(), act("ship"))
    service = Service(MemoryStore())

    assert await woken(service, made, pause, other) == Success("ship")

    assert service.world.done[-2:] == ["more", "ship"]
    assert len(set(service.world.done)) == len(service.world.done)
    assert await Client(service.checkpoints()).handle(made, "r").published("progress") == 1


@each_place
async def test_a_run_that_has_published_something_continues_after_a_crash(
    publishing: AnyEffect,
) -> None:
    made = code(publishing, sleep(1), act("ship"))

    await died_everywhere(made)


# Children.


@workflow
def child(item: str) -> Do[App, Broken, str]:
    yield from note(f"make {item}")
    return f"made {item}"


def parent(*order: int) -> AnyWorkflow:
    """Return a workflow that waits for the results of its two children in some order."""

    @workflow(name="parent")
    def made(_: object) -> Do[App, Broken, dict[int, str]]:
        children = yield from traverse(["cap", "hat"], lambda item: spawn(child, item))
        results: dict[int, str] = {}
        for number in order:
            results[number] = yield from children[number].result()
        yield from pause.wait()
        return results

    return made


async def test_a_child_never_gets_the_result_of_its_sibling() -> None:
    service, before, swapped = Service(MemoryStore()), parent(0, 1), parent(1, 0)
    async with working(service, before, child) as worker:
        handle = await worker.client.submit(before, None, run_id="r")
        await suspended(service, "r", waits_for="signal pause")
    await handle.send(pause, "go")

    async with working(service, swapped, child):
        with anyio.fail_after(10):
            while not (found := await info_of(service, "r")).summary.details.blocked:
                assert not found.summary.status.has_ended
                await anyio.sleep(0.003)

    async with working(service, before, child, clock=TestClock()):
        assert await handle.result(timeout=10) == Success({0: "made cap", 1: "made hat"})


# A failure beside a wait.


def waits(*signals: Signal[str]) -> AnyEffect:
    return in_order(*(signal.wait() for signal in signals), act("ship"))


BESIDE: dict[str, Callable[[AnyEffect, AnyEffect], AnyEffect]] = {
    "first_success": lambda declined, waiting: first_success([declined, waiting]),
    "par_all": lambda declined, waiting: par_all([declined, waiting]).result().map(lambda _: "ship"),
    "fallback": lambda declined, waiting: par(declined.fallback(""), waiting).map(lambda _: "ship"),
    "result": lambda declined, waiting: par(declined.result(), waiting).map(lambda _: "ship"),
    "or_else": lambda declined, waiting: par(
        declined.or_else(lambda _: waiting), pure(1)
    ).map(lambda _: "ship"),
}  # fmt: skip
beside_a_wait = pytest.mark.parametrize("beside", BESIDE.values(), ids=BESIDE)
Beside = Callable[[AnyEffect, AnyEffect], AnyEffect]


@beside_a_wait
async def test_a_declined_branch_beside_a_wait_is_not_executed_again_by_a_worker(
    beside: Beside,
) -> None:
    signals = [Signal(f"signal {number}", str) for number in range(4)]
    made, service = code(beside(decline(), waits(*signals))), Service(MemoryStore())

    assert await woken(service, made, *signals) == Success("ship")

    assert service.world.done == ["charge", "ship"]


@beside_a_wait
async def test_a_declined_branch_beside_a_wait_is_not_executed_again_by_start(
    beside: Beside, store: MemoryStore
) -> None:
    made, app = code(beside(decline(), waits(pause))), app_on(store)
    for _ in range(3):
        await cut_off(made.start(None, run_id="r"), app)
    await Client(app.checkpoints).handle(made, "r").send(pause, "go")

    assert await made.start(None, run_id="r").run(app) == Success("ship")

    assert app.world.done == ["charge", "ship"]


@beside_a_wait
async def test_a_declined_branch_beside_a_wait_is_not_executed_again_after_a_crash(
    beside: Beside, store: MemoryStore
) -> None:
    """The process is killed while the run waits."""
    made, world = code(beside(decline(), waits(pause))), World()
    for _ in range(3):
        faulty = FaultyStore(store, [CrashPoint(1000, is_durable=False)])
        with faulty.life():
            await cut_off(made.start(None, run_id="r"), App(Checkpoints(faulty), world))
    await Client(Checkpoints(store)).handle(made, "r").send(pause, "go")

    assert await made.start(None, run_id="r").run(App(Checkpoints(store), world)) == Success("ship")
    assert world.done == ["charge", "ship"]


# Waits in finalizers, acquisitions and undos.


def _undone(undo: AnyEffect) -> AnyEffect:
    booked = compensate(act("book"), lambda _: undo)
    return saga(in_order(booked, fail(Broken("no flight")))).fallback("undone")


SLEEPING: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "finalizer": lambda nap: act("use").on_exit(nap),
    "finalizer of a failure": lambda nap: decline().on_exit(nap).fallback("no"),
    "finalizer after a timeout": lambda nap: other.wait().on_exit(nap).timeout(0).result().map(str),
    "acquisition": lambda nap: bracket(nap, done_as("close"), lambda _: act("use")),
    "release": lambda nap: bracket(act("open"), lambda _: nap, lambda _: act("use")),
    "compensate": lambda nap: saga(compensate(nap, done_as("undo"))),
    "undo": _undone,
}  # fmt: skip
asleep = pytest.mark.parametrize("place", SLEEPING.values(), ids=SLEEPING)


@asleep
async def test_a_sleep_does_not_begin_again_when_a_worker_wakes_its_run(
    place: Callable[[AnyEffect], AnyEffect],
) -> None:
    made = code(par(place(sleep(100)), waits(pause)).map(lambda _: "over"))
    service, clock = Service(MemoryStore()), TestClock()
    async with working(service, made, clock=clock, grace=0) as worker:
        handle = await worker.client.submit(made, None, run_id="r")
        try:
            first = await until(service, "r", RunStatus.SUSPENDED, within=3)
            await clock.advance(30)
            await handle.send(pause, "go")
            longer_than = first.length
            second = await until(
                service, "r", RunStatus.SUSPENDED, longer_than=longer_than, within=3
            )
            assert second.summary.due_at == first.summary.due_at
            await clock.advance(70)
            assert await handle.result(timeout=3) == Success("over")
        finally:
            await clock.advance(1000)  # a worker does not end while a finalizer sleeps


@asleep
async def test_a_sleep_does_not_begin_again_after_a_stop(
    place: Callable[[AnyEffect], AnyEffect], store: MemoryStore
) -> None:
    made, app = code(place(sleep(100)), act("ship")), app_on(store)
    await stopped(made.start(None, run_id="r"), app, seconds=30)
    assert "ship" not in app.world.done

    clock = clock_at(60)
    assert await clock.run(made.resume("r"), app) == Success("ship")

    assert clock.monotonic() == 40


async def stopped(effect: AnyEffect, app: App, *, seconds: float) -> None:
    """Run an effect that is stopped from outside after some time, which must not wait for its sleeps."""
    clock = clock_at(0)

    async def give_up() -> None:
        await anyio.sleep(2)  # in real time
        await clock.advance(1000)

    async with anyio.create_task_group() as watching:
        watching.start_soon(give_up)
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                await effect.run(app, clock=clock)

            tasks.start_soon(run)
            await clock.advance(seconds)
            tasks.cancel_scope.cancel()
        watching.cancel_scope.cancel()


# An unknown outcome, and a run that is cancelled.


@step(at_most_once=True)
def book_once() -> Effect[App, Broken, str]:
    return note("book").map(lambda _: "booked")


async def left_unknown(made: AnyWorkflow, store: MemoryStore, world: World) -> Handle[Any, Any]:
    """Let a process die after the step has acted, and request the cancellation of the run."""
    faulty = FaultyStore(store, [CrashPoint(after("book_once"), is_durable=False)])
    with faulty.life():
        await made.start(None, run_id="r").run(App(Checkpoints(faulty), world))
    handle = Service(store, world).client.handle(made, "r")
    await handle.cancel()
    return handle


UNKNOWN: dict[str, tuple[AnyEffect, list[str]]] = {
    "step": (in_order(book_once(), act("ship")), ["book"]),
    "compensate": (
        saga(in_order(compensate(act("pay"), done_as("refund")), compensate(book_once(), done_as("no")))),
        ["pay", "book", "refund"],
    ),
    "acquisition": (bracket(book_once(), done_as("no"), lambda _: act("no")), ["book"]),
    "finalizer": (act("pay").on_exit(book_once().fallback("")), ["pay", "book"]),
}  # fmt: skip


@pytest.mark.parametrize(("work", "done"), UNKNOWN.values(), ids=UNKNOWN)
async def test_a_run_with_an_unknown_step_can_be_cancelled(
    work: AnyEffect, done: list[str], store: MemoryStore
) -> None:
    """The step may have happened; it is not executed again. What else was done is undone."""
    made, world = code(work), World()
    handle = await left_unknown(made, store, world)
    assert world.done[-1] == "book"

    async with working(Service(store, world), made):
        result = await handle.result(timeout=10)

    assert isinstance(result.failure(), RunCancelled)
    assert world.done == done
    assert await handle.status() is RunStatus.CANCELLED


async def test_an_unknown_undo_of_a_cancelled_run_is_executed_only_by_force(
    store: MemoryStore,
) -> None:
    undone = saga(in_order(compensate(act("pay"), lambda _: book_once()), fail(Broken("no"))))
    made, world = code(undone), World()
    handle = await left_unknown(made, store, world)

    async with working(Service(store, world), made):
        assert isinstance((await handle.result(timeout=10)).failure(), CompensationFailed)
    app = App(Checkpoints(store), world)
    again = await made.resume("r").run(app)

    assert isinstance(again.failure(), CompensationFailed)
    assert world.done == ["pay", "book"]
    forced = await made.resume("r", force=True).run(app)
    assert isinstance(forced.failure(), RunCancelled)
    assert world.done == ["pay", "book", "book"]


# Values that cannot be saved.


UNSAVABLE: dict[str, AnyEffect] = {
    "step": with_checkpointing("charge", note("charge").map(lambda _: object())),
    "publish": with_checkpointing("charge", note("charge").and_then(lambda _: publish("p", object()))),
}  # fmt: skip


@pytest.mark.parametrize("work", UNSAVABLE.values(), ids=UNSAVABLE)
async def test_a_step_that_acted_and_cannot_be_saved_is_not_executed_again_by_workers(
    work: AnyEffect,
) -> None:
    """The run has failed, and continues once someone has corrected the code and resumes it."""
    made, service, clock = code(work), Service(MemoryStore()), TestClock()
    async with working(service, made, clock=clock) as worker:
        handle: Handle[Any, Any] = await worker.client.submit(made, None, run_id="r")
        assert isinstance((await handle.result(timeout=10)).failure(), NotSerializable)
        await clock.advance(600)
    assert service.world.done == ["charge"]
    assert await handle.status() is RunStatus.FAILED

    corrected = code(with_checkpointing("charge", note("charge").map(str)))
    app = App(service.checkpoints(), service.world)
    assert await corrected.resume("r").run(app) == Success("2")


# Publications inside of steps.


def published_within(work: AnyEffect) -> AnyWorkflow:
    """Return a workflow with a step that publishes something and then does this work."""
    return code(with_checkpointing("outer", in_order(publish("progress", 1), work)), act("ship"))


FINALIZED: dict[str, AnyEffect] = {
    "success": act("work").on_exit(act("close")),
    "failure": decline().on_exit(act("close")).fallback("no"),
    "release": bracket(act("open"), done_as("close"), lambda _: act("work")),
    "timeout": sleep(60).on_exit(act("close")).timeout(0).result().map(lambda _: "late"),
    "undo": saga(in_order(compensate(act("work"), done_as("close")), fail(Broken("no")))).fallback(""),
}  # fmt: skip
finalized = pytest.mark.parametrize("work", FINALIZED.values(), ids=FINALIZED)


@finalized
@pytest.mark.parametrize(
    "point",
    [CrashPoint(before("close"), is_durable=True), CrashPoint(after("close"), is_durable=False)],
    ids=str,
)
async def test_a_step_that_published_is_killed_in_its_finalizer(
    work: AnyEffect, point: CrashPoint, store: MemoryStore
) -> None:
    made, faulty = published_within(work), FaultyStore(store, [point])
    with faulty.life():
        await made.start(None, run_id="r").run(app_on(faulty))
    assert not faulty.unmet
    app = app_on(store)

    assert await made.resume("r").run(app) == Success("ship")

    assert app.world.done == ["close", "ship"]
    assert await Client(app.checkpoints).handle(made, "r").published("progress") == 1


@finalized
async def test_a_step_that_published_is_killed_anywhere(work: AnyEffect) -> None:
    await died_everywhere(published_within(work))


# Timeouts that never come.


@step(timeout=math.inf)
def patient() -> Effect[App, Broken | TimedOut, str]:
    return note("work").map(lambda _: "work")


FOREVER: dict[str, AnyEffect] = {
    "step": act("work").timeout(math.inf),
    "timeout of a step": patient(),
    "two steps": in_order(act("one"), act("work")).timeout(math.inf),
    "inside of a step": with_checkpointing("outer", act("work").timeout(math.inf)),
    "in a branch": par(act("work").timeout(math.inf), pure(1)).map(lambda _: "work"),
    "in a finalizer": pure("work").on_exit(act("work").timeout(math.inf).fallback("late")),
    "sleep": race([act("work"), sleep(math.inf)]),
}
never_late = pytest.mark.parametrize("work", FOREVER.values(), ids=FOREVER)


@never_late
async def test_an_infinite_timeout_survives_a_crash(work: AnyEffect) -> None:
    await died_everywhere(code(work, sleep(1), act("ship")))


@never_late
async def test_an_infinite_timeout_survives_a_suspension(work: AnyEffect) -> None:
    service = Service(MemoryStore())

    assert await woken(service, code(work, pause.wait(), act("ship")), pause) == Success("ship")

    assert service.world.done.count("work") == 1


async def test_a_wait_with_an_infinite_timeout_is_suspended_and_ends() -> None:
    service = Service(MemoryStore())
    made = code(pause.wait().timeout(math.inf), other.wait().timeout(math.inf))

    assert await woken(service, made, pause, other) == Success("go")


# Failures that a body keeps.


@step
def declined(number: int) -> Effect[App, Broken, str]:
    return note(f"charge {number}").and_then(lambda _: fail(Broken(number)))


@do
def collecting(count: int, raised: int) -> Do[App, Any, str]:
    """Collect failures, do something else, and raise one of them. No annotation declares it."""
    errors: list[Broken] = []
    for number in range(count):
        try:
            yield from declined(number)
        except Broken as error:
            errors.append(error)
    yield from act("report")
    raise errors[raised]


COLLECTED = pytest.mark.parametrize(("count", "raised"), [(1, 0), (9, 0), (40, 0), (40, 20)])


@COLLECTED
async def test_a_failure_that_was_collected_is_a_failure_when_it_is_raised(
    count: int, raised: int
) -> None:
    result = await collecting(count, raised).run(app_on(MemoryStore()))

    assert isinstance(result.failure(), Broken)
    assert result.failure().args == (raised,)


@COLLECTED
@pytest.mark.parametrize("step", ["declined", "report"])
async def test_a_failure_that_was_collected_is_a_failure_after_a_crash(
    count: int, raised: int, step: str, store: MemoryStore
) -> None:
    made = code(collecting(count, raised))
    faulty = FaultyStore(store, [CrashPoint(after(step), is_durable=True)])
    with faulty.life():
        await made.start(None, run_id="r").run(app_on(faulty))
    app = app_on(store)

    result = await made.resume("r").run(app)

    assert isinstance(result.failure(), Broken)
    assert result.failure().args == (raised,)
    assert "charge 0" not in app.world.done
