"""A stop, a drain, a cancellation or a crash at a moment that went wrong once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Failure, Success

from effectflow import (
    App as Service,
    Checkpoints,
    Client,
    Do,
    Effect,
    RetryPolicy,
    TimedOut,
    Worker,
    bracket,
    compensate,
    do,
    effect,
    fail,
    par,
    par_traverse,
    pure,
    race,
    random,
    saga,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import (
    CancelRequested,
    Failed,
    RunStatus,
    Value,
    find_run,
    read_entries,
    save_now,
)
from effectflow.effects import from_async, from_fn
from effectflow.stores import MemoryStore
from tests.apps import Broken, both_backends, cut_off
from tests.runs.journals import AnyEffect, cut

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Env:
    """Notes what was done. `broken` names the steps that fail."""

    checkpoints: Checkpoints = field(default_factory=lambda: Checkpoints(MemoryStore()))
    done: list[str] = field(default_factory=list[str])
    broken: list[str] = field(default_factory=list[str])
    event: anyio.Event = field(default_factory=anyio.Event)

    def after(self, store: MemoryStore, *broken: str) -> Env:
        """Return the environment of another process."""
        return replace(self, checkpoints=Checkpoints(store), broken=list(broken))


def act(name: str, seconds: float = 0) -> AnyEffect:
    """Return a step that notes its name."""

    @step(name=name)
    @effect(errors=Broken)
    async def acting(env: Env) -> str:
        await anyio.sleep(seconds)
        env.done.append(name)
        if name in env.broken:
            raise Broken(name)
        return name

    return acting()


def made(body: Callable[[], Effect[Any, Any, Any]]) -> Any:
    @workflow(name="made")
    def run(_: None) -> Do[Env, Any, Any]:
        return (yield from body())

    return run


def worker_of(one: Any, env: Env, **options: Any) -> Worker:
    options = {"suspend_after": 60, **options}
    served = Service([one], environment=lambda _: env, checkpoints=env.checkpoints)
    return Worker(served, **options)


async def status_of(env: Env) -> RunStatus:
    info = await find_run(env.checkpoints.store, "r")
    assert info is not None
    return info.summary.status


# Stops.


async def test_a_stop_while_the_branches_of_a_finalizer_end_does_not_hang() -> None:
    one = made(lambda: pure("done").on_exit(par(act("undo 1"), act("undo 2"))))
    turns = 0
    for turns in range(60):
        running = asyncio.ensure_future(one.start(None, run_id="r").run(Env()))
        for _ in range(turns):
            await asyncio.sleep(0)
        if running.done():
            break
        running.cancel()
        ended, waiting = await asyncio.wait([running], timeout=5)
        assert (len(ended), waiting) == (1, set()), turns
    assert turns > 10


@both_backends
async def test_steps_that_ended_before_a_stop_do_not_run_again() -> None:
    @step
    @effect
    async def work(env: Env, number: int) -> int:
        await env.event.wait()
        env.done.append(str(number))
        return number

    @effect
    async def log(_: Env) -> None:
        await anyio.lowlevel.checkpoint()

    one = made(lambda: par_traverse(range(5), lambda number: work(number).on_exit(log())))
    for turns in range(9):
        env = Env()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.start(None, run_id="r").run, env)
            await anyio.wait_all_tasks_blocked()
            env.event.set()
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        begun = list(env.done)
        assert await one.resume("r").run(env) == Success([0, 1, 2, 3, 4])
        assert sorted(env.done) == ["0", "1", "2", "3", "4"], (turns, begun)


@both_backends
async def test_a_loser_that_a_stop_keeps_from_its_release_is_released_by_the_resume() -> None:
    quick = from_async(lambda _: anyio.sleep(0.02))
    room = bracket(act("open", 0.2), lambda _: act("close"), pure)
    one = made(lambda: pure("done").on_exit(race(quick, room)))
    env = Env()
    with anyio.move_on_after(0.1):
        await one.start(None, run_id="r").run(env)
    assert await status_of(env) is RunStatus.INTERRUPTED
    assert await one.resume("r").run(env) == Success("done")
    assert env.done == ["open", "close"]


async def test_a_stop_that_cuts_off_a_booking_of_a_failed_saga_is_a_pause() -> None:
    async def check(_: object) -> None:
        await anyio.sleep(0.05)
        raise Broken("card")

    checked = effect(errors=Broken)(check)
    booked = compensate(act("book", 0.3), lambda _: act("cancel"))
    one = made(lambda: saga(par(booked, checked())))
    env = Env()
    with anyio.move_on_after(0.1):
        await one.start(None, run_id="r").run(env)
    assert await status_of(env) is RunStatus.INTERRUPTED
    assert isinstance(await one.resume("r").run(env), Failure)
    assert env.done in ([], ["book", "cancel"])


@both_backends
async def test_a_run_that_completes_while_it_is_stopped_records_its_values() -> None:
    one = made(
        lambda: pure(1).on_exit(from_async(lambda _: anyio.sleep(0.1))).and_then(lambda _: random())
    )
    env = Env()
    with anyio.move_on_after(0.05):
        await one.start(None, run_id="r").run(env)
    entries = await read_entries(env.checkpoints.store, "r")
    if await status_of(env) is RunStatus.COMPLETED:
        assert any(isinstance(entry, Value) for entry in entries)


# Crashes.


async def test_a_resume_that_tries_again_at_once_keeps_what_it_leaves_out() -> None:
    @effect(errors=Broken)
    async def connect(env: Env) -> str:
        await anyio.sleep(0.05 if env.broken else 0.2)
        if env.broken:
            raise Broken("local")
        return "connected"

    @step
    @effect
    async def reserve(env: Env) -> str:
        if env.broken:
            await anyio.sleep_forever()
        return "room"

    room: Effect[Env, TimedOut, str] = bracket(reserve().timeout(0.1), lambda _: pure(None), pure)
    one = made(lambda: par(connect(), room))
    env = Env(broken=["connect"])
    await one.start(None, run_id="r").run(env)
    env.broken.clear()
    assert await one.resume("r").run(env) == Success(("connected", "room"))


async def test_a_resume_that_tries_again_at_once_keeps_the_version() -> None:
    @step
    @effect
    def tax(_: Env) -> int:
        return 7

    def body(name: str, *last: str) -> Do[Env, Broken, int]:
        yield from act(name)
        found = 0
        for each in last:
            found = yield from tax()
            yield from act(each)
        return found

    @workflow(name="order")
    def first(_: None) -> Do[Env, Broken, int]:
        return (yield from body("pay"))

    @workflow(
        name="order",
        version="2",
        migrations={1: lambda saved: saved * 100 if isinstance(saved, int) else saved},
    )
    def second(_: None) -> Do[Env, Broken, int]:
        return (yield from body("pay", "ship"))

    env = Env(broken=["pay"])
    await first.start(None, run_id="r").run(env)
    store = env.checkpoints.store
    assert isinstance(store, MemoryStore)
    # The process died before the run could end.
    died = await cut(store, len(await read_entries(store, "r")) - 1)
    await second.resume("r").run(env.after(died, "ship"))
    assert await second.resume("r").run(env.after(died)) == Success(7)


async def test_a_plan_after_a_finalizer_of_immediate_branches() -> None:
    closed = par(from_fn(lambda _: 1), from_fn(lambda _: 2))

    @do
    def body() -> Do[Env, Broken, str]:
        yield from act("a").on_exit(closed)
        yield from act("b")
        return (yield from act("c"))

    one, env = made(body), Env(broken=["c"])
    await one.start(None, run_id="r").run(env)
    assert isinstance(await one.plan("r").run(env), Success)


# Failures.


@pytest.mark.parametrize("decided", [race, par])
async def test_a_race_in_a_local_finalizer_lets_no_failure_before_it_stand(decided: Any) -> None:
    ended = decided(from_fn(lambda _: 1), from_fn(lambda _: 2))
    one, env = made(lambda: act("charge").on_exit(ended)), Env(broken=["charge"])
    await one.start(None, run_id="r").run(env)
    env.broken.clear()
    assert await one.resume("r").run(env) == Success("charge")


@step(retry=RetryPolicy.constant(0.01).with_max_retries(1))
@do
def patient() -> Do[Env, Broken, None]:
    """Fail twice, each time after a while."""
    yield from act("begin")
    yield from sleep(0.1)
    yield from fail(Broken("still"))


async def test_an_attempt_that_a_resume_continues_is_one_of_those_that_the_policy_allows() -> None:
    one, env = made(patient), Env()
    await cut_off(one.start(None, run_id="r"), env)
    assert isinstance(await one.resume("r").run(env), Failure)
    entries = await read_entries(env.checkpoints.store, "r")
    assert sum(isinstance(entry, Failed) for entry in entries) == 2


async def test_suspensions_within_an_attempt_grant_no_more_attempts() -> None:
    one, env = made(patient), Env()
    async with worker_of(one, env, suspend_after=0) as worker:
        handle = await worker.client.submit(one, None, run_id="r")
        with anyio.fail_after(10):
            assert isinstance(await handle.result(), Failure)
    entries = await read_entries(env.checkpoints.store, "r")
    assert sum(isinstance(entry, Failed) for entry in entries) == 2


# Drains, and cancellations of runs.


async def test_what_a_run_does_while_its_worker_drains_can_be_replayed() -> None:
    @do
    def trip() -> Do[Env, Broken, None]:
        yield from compensate(act("book"), lambda _: act("cancel"))
        yield from race(sleep(0.15).map(lambda _: "waited"), act("pay", 0.3))
        yield from act("confirm")

    one, env = made(lambda: saga(trip())), Env(broken=["pay"])
    async with worker_of(one, env, grace=5) as worker:
        await worker.client.submit(one, None, run_id="r")
        while "book" not in env.done:
            await anyio.sleep(0.01)
    assert await one.resume("r").run(env) == Success(None)
    assert env.done.count("confirm") == 1
    assert "cancel" not in env.done


async def test_a_run_that_dies_while_it_is_cancelled_in_a_step_can_be_resumed() -> None:
    @effect
    async def call(_: Env) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.3)

    @step
    @effect
    def inner(env: Env) -> None:
        env.done.append("inner")

    @step
    @do
    def outer() -> Do[Env, Broken, None]:
        yield from inner()
        yield from sleep(0.05)
        yield from call()

    one, env = made(outer), Env()
    store = env.checkpoints.store
    assert isinstance(store, MemoryStore)
    async with worker_of(one, env) as worker:
        handle = await worker.client.submit(one, None, run_id="r")
        await anyio.sleep(0.2)
        await handle.cancel()
        await anyio.sleep(0.2)
        died = await cut(store, len(await read_entries(store, "r")))
        await handle.result()
    again = env.after(died)
    ended = await one.resume("r").run(again)
    assert "was cancelled" in str(ended.failure())


async def test_a_run_that_is_cancelled_as_an_acquisition_begins_can_be_resumed_anywhere() -> None:
    class SlowStore(MemoryStore):
        delay = 0.0

        async def append(self, *arguments: Any, **options: Any) -> None:
            await anyio.sleep(self.delay)
            return await super().append(*arguments, **options)

    def used() -> AnyEffect:
        opened = save_now("open").and_then(lambda _: act("open"))
        return bracket(opened, lambda _: act("close"), lambda _: act("use"))

    one = made(lambda: act("a").and_then(lambda _: used()).on_exit(act("undo")))
    store = SlowStore()
    env = Env(Checkpoints(store))
    async with worker_of(one, env) as worker:
        handle = await worker.client.submit(one, None, run_id="r")
        store.delay = 0.3
        while len(await read_entries(store, "r")) < 3:
            await anyio.sleep(0.01)
        await anyio.sleep(0.1)
        await Client(env).handle(one, "r").cancel()
        await handle.result()
    entries = await read_entries(store, "r")
    first = next(at for at, entry in enumerate(entries, 1) if isinstance(entry, CancelRequested))
    for count in range(first, len(entries)):
        ended = await one.resume("r").run(env.after(await cut(store, count)))
        assert "was cancelled" in str(ended.failure()), count
