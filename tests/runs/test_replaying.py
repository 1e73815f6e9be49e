"""`replaying()` tells code whether it repeats what an earlier life has done, such as logging a line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from effectflow import (
    Client,
    Do,
    Effect,
    RetryPolicy,
    Signal,
    TimedOut,
    ask,
    bracket,
    do,
    effect,
    par,
    par_traverse,
    pure,
    race,
    sleep,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import replaying
from effectflow.effects import from_fn
from effectflow.observe import ReplayFilter
from effectflow.stores import MemoryStore
from effectflow.testing import CrashPoint, FaultyStore, after, before
from tests.apps import App, app_on, both_backends, cut_off, note
from tests.service.conftest import Service
from tests.service.lives import suspended, working

pytestmark = [pytest.mark.anyio, both_backends]

pause: Signal[str] = Signal("pause", str)
other: Signal[str] = Signal("other", str)

Seen = list[tuple[str, bool]]
SEEN: Seen = []


def see(place: str) -> None:
    """Note whether the code here is being replayed."""
    SEEN.append((place, replaying()))


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    SEEN.clear()
    yield
    SEEN.clear()


def seen() -> Seen:
    """Return what has been seen in this life, and begin another one."""
    found = list(SEEN)
    SEEN.clear()
    return found


@step
@effect
def charge(app: App, amount: int) -> str:
    see(f"step {amount}")
    app.world.note(f"charge {amount}")
    return f"{amount} paid"


@step
async def ship(item: str) -> str:
    see(f"step {item}")
    app = await ask(App)
    app.world.note(f"ship {item}")
    return f"{item} is on its way"


# Bodies that wait after their second step.


@do
def generator() -> Do[App, Any, None]:
    see("begin")
    yield from charge(1)
    see("between")
    yield from charge(2)
    see("before the wait")
    yield from pause.wait()
    see("after the wait")
    yield from charge(3)
    see("end")


@do
async def coroutine() -> None:
    see("begin")
    await charge(1)
    see("between")
    await charge(2)
    see("before the wait")
    await pause.wait()
    see("after the wait")
    await charge(3)
    see("end")


def functions() -> Effect[App, Any, None]:
    def look(place: str) -> Effect[object, Any, None]:
        return from_fn(lambda _: see(place))

    return (
        look("begin")
        .within(App)
        .and_then(lambda _: charge(1))
        .tap(lambda _: look("between"))
        .and_then(lambda _: charge(2))
        .tap(lambda _: look("before the wait"))
        .and_then(lambda _: pause.wait())
        .tap(lambda _: look("after the wait"))
        .and_then(lambda _: charge(3))
        .tap(lambda _: look("end"))
        .map(lambda _: None)
    )


BODIES = [generator, coroutine, functions]
each_body = pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)

BEFORE = ["begin", "step 1", "between", "step 2", "before the wait"]
AFTER = ["after the wait", "step 3", "end"]
REPLAYED = ["begin", "between", "before the wait"]


def made_of(body: Callable[[], Effect[Any, Any, Any]]) -> Any:
    """Return a workflow with this body."""

    @workflow(name="made")
    def made(_: object) -> Do[App, Any, Any]:
        return (yield from body())

    return made


def all_live(*places: str) -> Seen:
    return [(place, False) for place in places]


def all_replayed(*places: str) -> Seen:
    return [(place, True) for place in places]


async def send(made: Any, store: Any, *signals: Signal[str]) -> None:
    handle = Client(app_on(store).checkpoints).handle(made, "r")
    for signal in signals:
        await handle.send(signal, "go")


@each_body
async def test_nothing_is_replayed_in_the_first_life(
    body: Callable[[], Any], store: MemoryStore
) -> None:
    made = made_of(body)
    client = Client(app_on(store).checkpoints)
    await client.submit(made, None, run_id="r")
    await send(made, store, pause)

    await made.resume("r").run_or_raise(app_on(store))

    assert seen() == all_live(*BEFORE, *AFTER)


@each_body
async def test_a_resume_replays_up_to_the_wait_and_is_live_from_then_on(
    body: Callable[[], Any], store: MemoryStore
) -> None:
    made, app = made_of(body), app_on(store)
    await cut_off(made.start(None, run_id="r"), app)
    assert seen() == all_live(*BEFORE)
    await cut_off(made.resume("r"), app)
    assert seen() == all_replayed(*REPLAYED)
    await send(made, store, pause)

    await made.resume("r").run_or_raise(app)

    assert seen() == all_replayed(*REPLAYED) + all_live(*AFTER)


@each_body
async def test_a_worker_replays_up_to_the_wait_and_is_live_from_then_on(
    body: Callable[[], Any],
) -> None:
    made, service = made_of(body), Service(MemoryStore())
    async with working(service, made) as worker:
        handle = await worker.client.submit(made, None, run_id="r")
        await suspended(service, "r")
        assert seen() == all_live(*BEFORE)
        await handle.send(pause, "go")
        await handle.result(timeout=10)

    assert seen() == all_replayed(*REPLAYED) + all_live(*AFTER)


@each_body
@pytest.mark.parametrize("point", [before("charge#2"), after("charge#2")], ids=str)
async def test_the_step_that_a_crash_cut_off_is_live_and_so_is_all_after_it(
    body: Callable[[], Any], point: Any, store: MemoryStore
) -> None:
    is_begun = point == before("charge#2")
    made, faulty = made_of(body), FaultyStore(store, [CrashPoint(point, is_durable=is_begun)])
    with faulty.life():
        await cut_off(made.start(None, run_id="r"), app_on(faulty))
    seen()

    await cut_off(made.resume("r"), app_on(store))

    found = seen()
    assert found[0] == ("begin", True)
    assert found[-2:] == all_live("step 2", "before the wait")


@each_body
async def test_a_plan_is_a_replay(body: Callable[[], Any], store: MemoryStore) -> None:
    made = made_of(body)
    await cut_off(made.start(None, run_id="r"), app_on(store))
    seen()

    await made.plan("r").run_or_raise(app_on(store))

    assert {is_replay for _, is_replay in seen()} <= {True}


@each_body
async def test_what_follows_a_message_that_came_while_no_process_had_the_run_is_live(
    body: Callable[[], Any], store: MemoryStore
) -> None:
    """No earlier life has come so far, even if the message was there first."""
    made = made_of(body)
    await cut_off(made.start(None, run_id="r"), app_on(store))
    await send(made, store, pause)
    seen()

    await made.resume("r").run_or_raise(app_on(store))

    assert seen()[-3:] == all_live(*AFTER)


async def test_the_retry_of_a_failed_run_is_live_from_the_failed_step_on(
    store: MemoryStore,
) -> None:
    @workflow
    def failing(_: None) -> Do[App, Any, None]:
        see("begin")
        yield from charge(1)
        see("between")
        yield from note("may fail").checkpointed("failing")
        see("end")

    app = app_on(store, failing=["may fail"])
    await failing.start(None, run_id="r").run(app)
    assert seen() == all_live("begin", "step 1", "between")
    app.world.recover()

    await failing.resume("r").run_or_raise(app)

    assert seen() == [*all_replayed("begin", "between"), ("end", False)]


async def test_a_complete_run_replays_nothing(store: MemoryStore) -> None:
    made, app = made_of(charging), app_on(store)
    await made.start(None, run_id="r").run_or_raise(app)
    seen()

    await made.start(None, run_id="r").run_or_raise(app)

    assert seen() == []


@do
def charging() -> Do[App, Any, str]:
    see("begin")
    return (yield from charge(1))


# Branches.


@do
async def quoted(item: str) -> str:
    see(f"{item} begins")
    await ship(item)
    see(f"{item} waits")
    await (pause if item == "cap" else other).wait()
    see(f"{item} goes on")
    return await ship(f"{item} again")


@do
def quoted_in_turns(item: str) -> Do[App, Any, str]:
    see(f"{item} begins")
    yield from ship(item)
    see(f"{item} waits")
    yield from (pause if item == "cap" else other).wait()
    see(f"{item} goes on")
    return (yield from ship(f"{item} again"))


OPERATORS: dict[str, Callable[[Callable[[str], Any]], Effect[Any, Any, Any]]] = {
    "par": lambda branch: par(branch("cap"), branch("hat")),
    "par_traverse": lambda branch: par_traverse(["cap", "hat"], branch),
    "race": lambda branch: par(race([branch("cap"), branch("hat")]), branch("hat")),
    "nested": lambda branch: par(par(branch("cap"), branch("hat")), pure(1)),
}


@pytest.mark.parametrize("branch", [quoted, quoted_in_turns], ids=["coroutine", "generator"])
@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
async def test_branches_are_replayed_up_to_their_waits(
    operator: Callable[[Any], Effect[Any, Any, Any]], branch: Any, store: MemoryStore
) -> None:
    made, app = made_of(lambda: operator(branch)), app_on(store)
    await cut_off(made.start(None, run_id="r"), app)
    first = seen()
    assert not any(is_replay for _, is_replay in first)
    await send(made, store, pause, other, other)

    await made.resume("r").run_or_raise(app)

    second = seen()
    for place, is_replay in second:
        assert is_replay == place.endswith(("begins", "waits")), place
    # No step is executed again.
    assert sorted(place for place, is_replay in second if is_replay) == sorted(
        place for place, _ in first if not place.startswith("step")
    )


# Steps.


async def test_the_code_of_steps_is_never_replayed_even_beside_a_replay(store: MemoryStore) -> None:
    """A step that a stop cut off runs again once the replay is over."""

    @step
    async def stuck() -> None:
        see("stuck")
        app = await ask(App)
        if app.world.note("stuck") == 1:
            await anyio.sleep_forever()

    made, app = made_of(lambda: par(stuck(), generator_without_a_wait())), app_on(store)
    await cut_off(made.start(None, run_id="r"), app)
    seen()

    await made.resume("r").run_or_raise(app)

    found = seen()
    assert ("stuck", False) in found
    assert ("begin", True) in found
    assert ("between", True) in found
    assert not any(is_replay for place, is_replay in found if place.startswith("step"))


@do
def generator_without_a_wait() -> Do[App, Any, None]:
    see("begin")
    yield from charge(1)
    see("between")
    yield from charge(2)
    see("end")


async def test_a_step_in_progress_is_replayed_up_to_its_last_recorded_step(
    store: MemoryStore,
) -> None:
    """Its code runs again for what it had not done, and does again what it had done."""

    @do
    async def inside() -> None:
        see("outer begins")
        await charge(1)
        see("outer goes on")
        await charge(2)
        see("outer ends")

    made = made_of(lambda: with_checkpointing("outer", inside()))
    faulty = FaultyStore(store, [CrashPoint(before("outer/charge#2"), is_durable=True)])
    with faulty.life():
        await made.start(None, run_id="r").run(app_on(faulty))
    assert seen() == all_live("outer begins", "step 1", "outer goes on")

    await made.resume("r").run_or_raise(app_on(store))

    found = seen()
    assert found[0] == ("outer begins", True)
    assert found[-2:] == all_live("step 2", "outer ends")


async def test_each_attempt_of_a_step_is_live(store: MemoryStore) -> None:
    @step(retry=RetryPolicy.constant(0).with_max_retries(3))
    @effect(errors=OSError)
    def flaky(app: App) -> None:
        see("flaky")
        if app.world.note("flaky") < 3:
            raise OSError

    await made_of(flaky).start(None, run_id="r").run_or_raise(app_on(store))

    assert seen() == all_live("flaky", "flaky", "flaky")


async def test_finalizers_are_replayed_like_other_code(store: MemoryStore) -> None:
    def release(_: object) -> Effect[App, Any, object]:
        return from_fn(lambda _: see("release")).within(App).and_then(lambda _: charge(2))

    @workflow
    def made(_: None) -> Do[App, Any, str]:
        yield from bracket(charge(1), release, lambda _: pure("used"))
        see("released")
        yield from pause.wait()
        see("live")
        return "over"

    app = app_on(store)
    await cut_off(made.start(None, run_id="r"), app)
    assert seen() == all_live("step 1", "release", "step 2", "released")
    await send(made, store, pause)

    await made.resume("r").run_or_raise(app)

    assert seen() == [*all_replayed("release", "released"), ("live", False)]


async def test_a_timeout_that_expired_is_replayed(store: MemoryStore) -> None:
    @workflow
    async def made(_: None) -> str:
        try:
            await other.wait().timeout(0.01)
        except TimedOut:
            see("late")
        await pause.wait()
        see("live")
        return "over"

    app = app_on(store)
    service = Service(store)
    async with service.worker(made, suspend_after=0) as worker:
        await worker.client.submit(made, None, run_id="r")
        await suspended(service, "r", waits_for="signal pause")
    assert seen()[-1] == ("late", False)
    await send(made, store, pause)

    await made.resume("r").run_or_raise(app)

    assert seen() == [("late", True), ("live", False)]


# Without a run, and beside one.


async def test_outside_of_runs_nothing_is_replayed() -> None:
    assert not replaying()
    app = app_on(MemoryStore())
    await charging().run_or_raise(app)
    await coroutine_in_memory().run_or_raise(app)
    assert not any(is_replay for _, is_replay in seen())
    assert not replaying()


@do
async def coroutine_in_memory() -> None:
    see("begin")
    await charge(1)
    await anyio.lowlevel.checkpoint()
    see("end")


def test_outside_of_an_event_loop_nothing_is_replayed(anyio_backend: str) -> None:
    assert not replaying()


async def test_a_run_that_replays_does_not_make_another_one_replay(store: MemoryStore) -> None:
    """Nor does it the task around, or a task that is started beside it."""

    @workflow
    async def slow(_: None) -> None:
        see("old")
        await ship("cap")
        await anyio.sleep(0.02)
        see("old again")
        await pause.wait()

    app = app_on(store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow.start(None, run_id="r").run, app)
        await anyio.sleep(0.1)
        tasks.cancel_scope.cancel()
    assert seen() == all_live("old", "step cap", "old again")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow.resume("r").run, app)
        await anyio.sleep(0.01)
        assert ("old", True) in SEEN
        assert not replaying()
        await coroutine_in_memory().run_or_raise(app)
        await made_of(charging).start(None, run_id="new").run_or_raise(app)
        await anyio.sleep(0.1)
        tasks.cancel_scope.cancel()

    others = [found for found in seen() if not found[0].startswith("old")]
    assert others == all_live("begin", "step 1", "end", "begin", "step 1")


# Log lines.


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The lines that a handler with the filter has handled."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger, handler = logging.getLogger("shop"), Handler()
    handler.addFilter(ReplayFilter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)


@step
async def log_in_a_step(item: str) -> None:
    logging.getLogger("shop").info("step %s", item)


@workflow
async def logging_workflow(items: list[str]) -> None:
    logger = logging.getLogger("shop")
    logger.info("begin")
    for item in items:
        await log_in_a_step(item)
        logger.info("wait for %s", item)
        await pause.wait()
        logger.info("done with %s", item)
    await sleep(0.01)
    logger.info("end")


async def test_a_filter_suppresses_the_lines_that_a_resume_repeats(
    lines: list[str], store: MemoryStore
) -> None:
    service = Service(store)
    client, items = service.client, ["cap", "hat", "tie"]
    handle = await client.submit(logging_workflow, items, run_id="r")
    info = None
    for _ in items:
        async with working(service, logging_workflow):
            info = await suspended(service, "r", after=info)
        await handle.send(pause, "go")
    async with service.worker(logging_workflow):
        await handle.result(timeout=10)

    expected = ["begin"]
    for item in items:
        expected += [f"step {item}", f"wait for {item}", f"done with {item}"]
    assert lines == [*expected, "end"]


async def test_a_filter_suppresses_the_lines_of_a_plan(
    lines: list[str], store: MemoryStore
) -> None:
    app = app_on(store)
    await cut_off(logging_workflow.start(["cap"], run_id="r"), app)
    found = list(lines)

    await logging_workflow.plan("r").run_or_raise(app)

    assert lines == found == ["begin", "step cap", "wait for cap"]
