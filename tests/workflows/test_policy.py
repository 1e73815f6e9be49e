"""When entries become durable, as the policy says."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import time
from typing import Any

import anyio
import pytest

from effectflow import Checkpoints, Do, Effect, fail, from_fn, pure, sleep, step, workflow
from effectflow.checkpoint import CheckpointPolicy, Lease, RunSummary, SaveFailed
from effectflow.stores import MemoryStore

pytestmark = pytest.mark.anyio


class CountingStore(MemoryStore):
    """Remembers how many entries each append brought."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[int] = []

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
    ) -> None:
        await super().append(lease, bodies, after=after, summary=summary, release=release)
        self.appends.append(len(bodies))


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    durable: list[int] = field(default_factory=list[int])


@step
def observe(number: int) -> Effect[App, str, int]:
    """A step that notes how much is durable while it runs."""

    def look(app: App) -> int:
        store = app.checkpoints.store
        assert isinstance(store, CountingStore)
        app.durable.append(sum(store.appends))
        return number

    return from_fn(look)


@step
def refuse() -> Effect[object, str, None]:
    return fail("no")


@workflow
def four_steps(_: None) -> Do[App, str, int]:
    total = 0
    for number in range(4):
        total += yield from observe(number)
    return total


@workflow
def one_fails(_: None) -> Do[App, str, None]:
    yield from observe(1)
    yield from refuse().or_else(lambda _: pure(None))
    yield from sleep(0)
    yield from observe(2)


async def test_by_default_a_step_finds_all_before_it_durable() -> None:
    async with CountingStore() as store:
        app = App(Checkpoints(store))
        await four_steps.start(None).run_or_raise(app)

    # Started, and two entries for each step before; the step's own BeforeStep as well.
    assert app.durable == [2, 4, 6, 8]
    # One commit a step: the completion of a step shares that of the next one's beginning.
    assert store.appends == [1, 1, 2, 2, 2, 2]


async def test_every_so_many_steps() -> None:
    async with CountingStore() as store:
        app = App(Checkpoints(store, policy=CheckpointPolicy(every_steps=2)))
        await four_steps.start(None).run_or_raise(app)

    assert app.durable == [1, 1, 6, 6]
    assert store.appends == [1, 5, 4]


async def test_on_error_or_not() -> None:
    for on_error, durable in ((True, [1, 5]), (False, [1, 1])):
        async with CountingStore() as store:
            policy = CheckpointPolicy(every_steps=100, on_error=on_error)
            app = App(Checkpoints(store, policy=policy))
            await one_fails.start(None).run_or_raise(app)
            assert app.durable == durable


async def test_every_so_many_seconds() -> None:
    """With few commits by count, time makes durable what has completed."""

    @workflow
    def pausing(_: None) -> Do[App, str, None]:
        yield from observe(1)
        yield from sleep(0.2)
        yield from observe(2)

    async with CountingStore() as store:
        policy = CheckpointPolicy(every_steps=100, every_seconds=0.01)
        app = App(Checkpoints(store, policy=policy))
        await pausing.start(None).run_or_raise(app)

    assert app.durable == [1, 4]


async def test_the_lease_is_kept_however_seldom_entries_are_saved() -> None:
    held: list[bool] = []

    async def watch(store: CountingStore) -> None:
        while True:
            await anyio.sleep(0.05)
            info = await store.info("r")
            held.append(info is not None and info.lease is not None and info.lease.is_held(time()))

    @workflow
    def long(_: None) -> Do[App, str, None]:
        yield from observe(1)
        yield from sleep(1)

    async with CountingStore() as store, anyio.create_task_group() as group:
        policy = CheckpointPolicy(every_steps=100, every_seconds=3600)
        app = App(Checkpoints(store, policy=policy, lease_seconds=0.3))
        group.start_soon(watch, store)
        await long.start(None, run_id="r").run_or_raise(app)
        group.cancel_scope.cancel()

    assert held.count(True) > 10
    assert all(held)


async def test_a_store_that_breaks_ends_the_run_past_every_handler() -> None:
    class BrokenStore(CountingStore):
        async def append(self, *args: Any, **options: Any) -> None:
            if self.appends:
                raise OSError("the disk is on fire")
            await super().append(*args, **options)

    @workflow
    def stubborn(_: None) -> Do[App, str, str]:
        with suppress(OSError):
            yield from observe(1)
        return "went on"

    async with BrokenStore() as store:
        error = (await stubborn.start(None, run_id="r").run(App(Checkpoints(store)))).failure()

    assert isinstance(error, SaveFailed)
    assert "on fire" in str(error)


@pytest.mark.parametrize(
    "options", [{"every_steps": 0}, {"every_seconds": 0.0}, {"every_seconds": -1.0}]
)
def test_a_policy_that_means_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="every_"):
        CheckpointPolicy(**options)
