"""When entries become durable, as the policy says."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Never

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, strategies as st
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, fail, pure, step, with_checkpointing, workflow
from effectflow.checkpoint import (
    Batch,
    CheckpointPolicy,
    Lease,
    RunInfo,
    SaveFailed,
    StoreUnavailable,
    Taken,
)
from effectflow.effects import from_async, from_fn
from effectflow.stores import MemoryStore
from tests.apps import App
from tests.runs.journals import in_turn, made_of

pytestmark = pytest.mark.anyio


class CountingStore(MemoryStore):
    """Remembers how many entries each append brought, and how many were durable when steps looked."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[int] = []
        self.seen: list[int] = []

    async def create(self, run_id: str, bodies: Sequence[bytes], **options: Any) -> RunInfo | None:
        created = await super().create(run_id, bodies, **options)
        self.appends.append(len(bodies))
        return created

    async def append(self, lease: Lease, batch: Batch) -> None:
        await super().append(lease, batch)
        self.appends.append(len(batch.bodies))


@step
def observe(number: int) -> Effect[App, str, int]:
    """A step that notes how much is durable while it runs."""

    def look(app: App) -> int:
        store = app.checkpoints.store
        assert isinstance(store, CountingStore)
        store.seen.append(sum(store.appends))
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


async def test_by_default_a_step_finds_all_before_it_durable() -> None:
    async with CountingStore() as store:
        app = App(Checkpoints(store))
        await four_steps.start(None).run_or_raise(app)

    # Started, and two entries for each step before; the step's own BeforeStep as well.
    assert store.seen == [2, 4, 6, 8]
    # One commit a step: the completion of a step shares that of the next one's beginning.
    assert store.appends == [1, 1, 2, 2, 2, 2]


async def test_a_late_save_that_fails_ends_the_run_past_every_handler() -> None:
    class BrokenStore(CountingStore):
        async def append(self, *args: Any, **options: Any) -> None:
            if len(self.appends) == 2:
                raise OSError("the disk is on fire")
            await super().append(*args, **options)

    @workflow
    def stubborn(_: None) -> Do[App, str, str]:
        with suppress(Exception):
            yield from observe(1)
            yield from until_durable(3)
        return "went on"

    async with BrokenStore() as store:
        error = (await stubborn.start(None, run_id="r").run(App(Checkpoints(store)))).failure()

    assert isinstance(error, SaveFailed)
    assert "on fire" in str(error)


# Every combination, against what the documentation says of it.


@dataclass
class Expected:
    """How much is durable, worked out by hand."""

    policy: CheckpointPolicy
    durable: int = 1
    added: int = 1
    completed: int = 0

    def save(self) -> None:
        self.durable, self.completed = self.added, 0

    def begin(self) -> int:
        """A step begins. Gives how much it finds durable."""
        self.added += 1
        every = self.policy.every_steps
        if every is not None and (every == 1 or self.completed >= every):
            self.save()
        return self.durable

    def end(self, *, well: bool) -> None:
        self.added += 1
        self.completed += well
        if not well and self.policy.on_error:
            self.save()


@step
def look_and(end_well: bool) -> Effect[App, str, None]:
    def look(app: App) -> Effect[object, str, None]:
        store = app.checkpoints.store
        assert isinstance(store, CountingStore)
        store.seen.append(sum(store.appends))
        return pure(None) if end_well else fail("no")

    return from_fn(look).and_then(lambda effect: effect)


@workflow
def steps_that_end(well: list[bool]) -> Do[App, str, None]:
    for one in well:
        yield from look_and(one).or_else(lambda _: pure(None))


POLICIES = st.builds(
    CheckpointPolicy,
    every_steps=st.sampled_from([None, 1, 2, 3, 100]),
    every_seconds=st.sampled_from([None, 3600.0]),
    on_error=st.booleans(),
)


@given(policy=POLICIES, well=st.lists(st.booleans(), max_size=12))
def test_every_combination_of_steps_seconds_and_errors_saves_when_it_says(
    policy: CheckpointPolicy, well: list[bool]
) -> None:
    expected = Expected(policy)
    durable: list[int] = []
    for one in well:
        durable.append(expected.begin())
        expected.end(well=one)

    store = CountingStore()
    app = App(Checkpoints(store, policy=policy))
    steps_that_end.start(well).run_sync(app).unwrap()

    assert store.seen == durable
    # At the end everything is, with the `Finished` entry.
    assert sum(store.appends) == expected.added + 1


def until_durable(entries: int) -> Effect[App, Never, None]:
    """Waits, between steps, until this many entries are durable."""

    async def wait(app: App) -> None:
        store = app.checkpoints.store
        assert isinstance(store, CountingStore)
        with anyio.fail_after(5):
            while sum(store.appends) < entries:
                await anyio.sleep(0.001)

    return from_async(wait)


@pytest.mark.parametrize("every_steps", [None, 1, 2, 100])
@pytest.mark.parametrize("on_error", [True, False])
async def test_seconds_count_independently_of_the_other_rules(
    every_steps: int | None, on_error: bool
) -> None:
    """Neither a step nor an error makes durable what is waited for here; time does."""

    waiting = made_of(lambda: in_turn(observe(1), until_durable(3), observe(2), until_durable(5)))

    async with CountingStore() as store:
        policy = CheckpointPolicy(every_steps, every_seconds=0.01, on_error=on_error)
        app = App(Checkpoints(store, policy=policy))
        assert (await waiting.start(None).run(app)) == Success(None)


async def test_a_failure_that_is_not_saved_at_once_is_saved_in_time() -> None:
    failing = made_of(lambda: in_turn(refuse().or_else(lambda _: pure(None)), until_durable(3)))

    async with CountingStore() as store:
        policy = CheckpointPolicy(None, every_seconds=0.01, on_error=False)
        assert (await failing.start(None).run(App(Checkpoints(store, policy=policy)))) == Success(
            None
        )


async def test_without_any_reason_a_run_is_saved_when_it_begins_and_when_it_ends() -> None:
    async with CountingStore() as store:
        policy = CheckpointPolicy(every_steps=None, every_seconds=None, on_error=False)
        await four_steps.start(None).run_or_raise(App(Checkpoints(store, policy=policy)))

    assert store.appends == [1, 9]


async def test_an_interruption_and_a_step_that_runs_once_are_saved_under_every_policy() -> None:
    began = anyio.Event()

    async def wait(_: object) -> None:
        began.set()
        await anyio.sleep_forever()

    interrupted = made_of(
        lambda: in_turn(
            observe(1),
            with_checkpointing("once", pure(None), at_most_once=True),
            observe(2),
            with_checkpointing("wait", from_async(wait)),
        )
    )

    async with CountingStore() as store:
        policy = CheckpointPolicy(every_steps=None, on_error=False)
        async with anyio.create_task_group() as group:
            group.start_soon(interrupted.start(None).run, App(Checkpoints(store, policy=policy)))
            await began.wait()
            group.cancel_scope.cancel()

    # Started; the first step with the beginning of the one that runs once; the rest.
    assert store.appends[:2] == [1, 3]
    assert sum(store.appends) == 1 + 6 + 2


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (CheckpointPolicy(), 0.05),
        (CheckpointPolicy(every_seconds=0.01), 0.01),
        (CheckpointPolicy(every_seconds=60), 0.05),
        (CheckpointPolicy(every_steps=2), None),
        (CheckpointPolicy(every_steps=2, every_seconds=60), 60),
        (CheckpointPolicy(every_steps=None, every_seconds=60), 60),
    ],
)
def test_how_long_an_entry_waits_at_most(policy: CheckpointPolicy, seconds: float | None) -> None:
    assert policy.longest_wait == seconds


async def test_a_save_that_is_due_and_fails_with_a_warning_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Forgetful(CountingStore):
        refusals = 2

        async def append(self, *args: Any, **options: Any) -> None:
            if self.appends and self.refusals:
                self.refusals -= 1
                raise SaveFailed("r", "not now")
            await super().append(*args, **options)

    waiting = made_of(lambda: in_turn(observe(1), until_durable(3)))

    async with Forgetful() as store:
        policy = CheckpointPolicy(None, every_seconds=0.01)
        app = App(Checkpoints(store, policy=policy, on_save_error="warn"))
        assert await waiting.start(None, run_id="r").run(app) == Success(None)

    assert caplog.text.count("not now") == 2


async def test_an_unavailable_store_is_not_asked_more_often_than_entries_are_due() -> None:
    class Away(CountingStore):
        claims = 0
        was_asked_often = anyio.Event()

        async def append(self, *args: Any, **options: Any) -> None:
            if self.appends:
                raise OSError("no route")
            await super().append(*args, **options)

        async def claim(self, *args: Any, **options: Any) -> Taken:
            self.claims += 1
            if self.claims == 20:
                self.was_asked_often.set()
            if self.claims > 1:
                raise StoreUnavailable("elsewhere", "no route")
            return await super().claim(*args, **options)

    long = made_of(
        lambda: in_turn(observe(1), from_async(lambda _: store.was_asked_often.wait()), observe(2))
    )

    seconds = 0.01
    async with Away() as store:
        policy = CheckpointPolicy(None, every_seconds=seconds)
        app = App(Checkpoints(store, policy=policy, on_save_error="warn"))
        began = monotonic()
        with anyio.fail_after(60):
            await long.start(None).run(app)
        took = monotonic() - began

    # However long it took. It is asked once at the start, and at the end as often as it takes.
    assert store.claims <= 1 + took / seconds + 3


@pytest.mark.parametrize(
    "options",
    [
        {"every_steps": 0},
        {"every_steps": -1},
        {"every_seconds": 0.0},
        {"every_seconds": -1.0},
        {"every_seconds": math.nan},
    ],
)
def test_an_invalid_policy_is_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="every_"):
        CheckpointPolicy(**options)


class SlowStore(MemoryStore):
    """Lets other tasks run during each append, as a store that does I/O does."""

    async def append(self, lease: Lease, batch: Batch) -> None:
        await anyio.lowlevel.checkpoint()
        await super().append(lease, batch)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_steps_that_are_saved_soon_share_one_task_for_delayed_saves(
    anyio_backend: str,
) -> None:
    started: list[Any] = []

    @workflow
    def wf(count: int) -> Do[App, str, int]:
        for number in range(count):
            yield from with_checkpointing("step", pure(number))
        return count

    def note(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        started.append(work)
        return asyncio.Task(work, loop=loop, **options)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(note)
    try:
        # A task rests 0.05 seconds, so on a slow machine there are several.
        result = await wf.start(200).run(App(Checkpoints(SlowStore())))
    finally:
        loop.set_task_factory(None)

    assert result == Success(200)
    assert len(started) < 100


class UnhurriedStore(MemoryStore):
    """Takes its time for each append, and remembers the status that came with the last entry of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[str] = []

    async def append(self, lease: Lease, batch: Batch) -> None:
        await anyio.sleep(0.1)
        await super().append(lease, batch)
        if any(b'"finished"' in body for body in batch.bodies):
            self.ends.append("unknown" if batch.summary is None else batch.summary.status)


async def test_the_last_entry_and_the_status_are_one_write_although_a_late_save_waits() -> None:
    """A process that dies between them would leave a run that has ended and looks as if it had not."""
    store = UnhurriedStore()
    # The first late save begins in the second step, and the next one is due when the run ends.
    pause = from_async(lambda _: anyio.sleep(0.03))
    made = made_of(lambda: in_turn(*(with_checkpointing("pause", pause) for _ in range(3))))
    checkpoints = Checkpoints(store, policy=CheckpointPolicy(every_steps=None, every_seconds=0.01))
    assert isinstance(await made.start(None).run(App(checkpoints)), Success)
    assert store.ends == ["completed"]
