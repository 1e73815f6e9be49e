"""crash_everywhere: at certain steps, with keys, and without a word from dead tasks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, par, par_traverse, step, workflow
from effectflow.checkpoint import CheckpointPolicy, CheckpointStore, Encryption
from effectflow.effects import from_async, from_fn
from effectflow.stores import MemoryStore
from effectflow.testing import (
    CrashPoint,
    FaultyStore,
    SaveFails,
    StepAppend,
    TestClock,
    after,
    before,
    crash_everywhere,
)
from tests.apps import both_backends

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    done: list[str] = field(default_factory=list[str])


@step
def charge(item: str) -> Effect[App, str, str]:
    return from_fn(lambda app: app.done.append(f"charge {item}") or item)


@step
def ship(item: str) -> Effect[App, str, str]:
    return from_fn(lambda app: app.done.append(f"ship {item}") or item)


@workflow
def order(item: str) -> Do[App, str, str]:
    yield from charge(item)
    return (yield from ship(item))


@workflow
def orders(items: list[str]) -> Do[App, str, list[str]]:
    yield from order.call("a gift")
    return (yield from par_traverse(items, lambda item: charge(item).and_then(ship), key=str))


def app_on(store: CheckpointStore) -> App:
    return App(Checkpoints(store))


@both_backends
async def test_a_run_is_crashed_before_and_after_a_step() -> None:
    points = await crash_everywhere(order, "cap", app_on, at=[before("ship"), after("ship")])

    assert list(map(str, points)) == [
        "before the beginning of step 'ship' of run 'crash-test' was saved",
        "after the beginning of step 'ship' of run 'crash-test' was saved",
        "before the end of step 'ship' of run 'crash-test' was saved",
        "after the end of step 'ship' of run 'crash-test' was saved",
    ]


async def test_a_name_means_all_steps_with_that_name_and_a_path_only_one() -> None:
    named = await crash_everywhere(orders, ["cap", "hat"], app_on, at=[after("charge")])
    assert {point.append for point in named} == {
        StepAppend("order/charge", "end", "crash-test"),
        StepAppend("par_traverse[cap]/charge", "end", "crash-test"),
        StepAppend("par_traverse[hat]/charge", "end", "crash-test"),
    }
    path = "par_traverse[hat]/charge"
    [one, other] = await crash_everywhere(orders, ["cap", "hat"], app_on, at=[after(path)])
    assert one.append == other.append == StepAppend(path, "end", "crash-test")


async def test_an_unknown_step_is_rejected_with_the_steps_that_were_seen() -> None:
    with pytest.raises(ValueError, match=r"the end of step 'chrage'.*: 'charge', 'ship'$"):
        await crash_everywhere(order, "cap", app_on, at=[after("chrage")])


@both_backends
@pytest.mark.parametrize(
    ("point", "repeated"),
    [
        (CrashPoint(before("charge"), is_durable=False), []),
        (CrashPoint(before("charge"), is_durable=True), []),
        (CrashPoint(after("charge"), is_durable=False), ["charge cap"]),
        (CrashPoint(after("charge"), is_durable=True), []),
    ],
    ids=str,
)
async def test_a_store_dies_at_the_step(point: CrashPoint, repeated: list[str]) -> None:
    store = FaultyStore(MemoryStore(), [point])
    app = app_on(store)
    with store.life():
        await order.start("cap", run_id="r").run(app)
        pytest.fail("it is dead")
    assert app.done == (["charge cap"] if point.append == after("charge") else [])

    assert await order.start("cap", run_id="r").run(app) == Success("cap")
    assert app.done == [*repeated, "charge cap", "ship cap"]
    assert not store.unmet


@both_backends
async def test_a_save_may_fail_at_a_step_once() -> None:
    store = FaultyStore(MemoryStore(), [SaveFails(after("ship"))])
    app = app_on(store)

    await order.start("cap", run_id="r").run(app)
    assert app.done == ["charge cap", "ship cap"]
    assert await order.resume("r").run(app) == Success("cap")


@pytest.mark.parametrize(
    "options",
    [{"key": bytes(32)}, {"encryption": Encryption("k", {"k": bytes(32)})}, {"format": "cbor"}],
    ids=lambda options: next(iter(options)),
)
async def test_steps_are_found_in_signed_and_encrypted_entries(options: dict[str, Any]) -> None:
    def environment(store: CheckpointStore) -> App:
        return App(Checkpoints(store, **options))

    assert len(await crash_everywhere(order, "cap", environment)) == 8
    assert len(await crash_everywhere(order, "cap", environment, at=[after("charge")])) == 2


async def test_every_life_has_an_environment_that_is_made_and_closed() -> None:
    opened, closed = [0], [0]

    async def made(store: CheckpointStore) -> App:
        return App(Checkpoints(store))

    @asynccontextmanager
    async def async_manager(store: CheckpointStore) -> AsyncGenerator[App]:
        opened[0] += 1
        try:
            yield App(Checkpoints(store))
        finally:
            closed[0] += 1

    @contextmanager
    def manager(store: CheckpointStore) -> Generator[App]:
        yield App(Checkpoints(store))

    for environment in (made, async_manager, manager):
        assert len(await crash_everywhere(order, "cap", environment)) == 8
    # The whole run, and two lives for each crash.
    assert opened == closed == [17]


async def test_a_write_that_only_the_full_run_makes_is_not_a_crash_point() -> None:
    """A run that takes longer may save one by one what it otherwise saves together."""
    often, seldom = CheckpointPolicy(every_steps=1), CheckpointPolicy(every_steps=100)
    policies = chain([often], repeat(seldom))

    def environment(store: CheckpointStore) -> App:
        return App(Checkpoints(store, policy=next(policies)))

    assert 0 < len(await crash_everywhere(order, "cap", environment)) < 8


async def silently(
    work: Callable[[], Coroutine[Any, Any, object]], caplog: Any, capfd: Any
) -> None:
    """Run it. Fail if the event loop or a thread reports an exception that nothing handled."""
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    try:
        await work()
        await asyncio.sleep(0.05)
        gc.collect()
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    assert reported == []
    assert [each for each in caplog.records if each.name == "asyncio"] == []
    assert capfd.readouterr().err == ""


@workflow
def lingering(item: str) -> Do[App, str, str]:
    yield from par(charge(item), charge(item), order.call(item))
    # Longer than the entries wait, so that a background task saves them.
    yield from from_async(lambda _: anyio.sleep(0.02))
    return (yield from ship(item))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_crash_in_a_background_save_is_silent(
    anyio_backend: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    policy = CheckpointPolicy(every_steps=None, every_seconds=0.005)

    def environment(store: CheckpointStore) -> App:
        return App(Checkpoints(store, policy=policy))

    await silently(lambda: crash_everywhere(lingering, "cap", environment), caplog, capfd)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_tasks_of_a_dead_process_that_nothing_awaits_are_silent(
    anyio_backend: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def test_of_a_user() -> None:
        store = FaultyStore(MemoryStore(), [CrashPoint(after("charge"), is_durable=False)])
        app, clock = app_on(store), TestClock()
        with store.life():
            run = asyncio.create_task(order.start("cap").run(app, clock=clock))
            await clock.advance(3600)
            assert "ship cap" in app.done
            await run

    await silently(test_of_a_user, caplog, capfd)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_other_tasks_are_still_reported(anyio_backend: str) -> None:
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context.get("exception")))

    async def lost() -> None:
        raise ZeroDivisionError

    await crash_everywhere(order, "cap", app_on)
    task = asyncio.create_task(lost())
    await asyncio.wait([task])
    del task
    gc.collect()
    assert list(map(type, reported)) == [ZeroDivisionError]
