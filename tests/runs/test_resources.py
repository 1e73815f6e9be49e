"""Resources in a durable run: what is acquired is released, and what was released is not used again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Success

from effectflow import (
    Do,
    Effect,
    TimedOut,
    bracket,
    fail,
    par,
    par_traverse,
    pure,
    race,
    sleep,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import DefinitionChanged
from effectflow.effects import acquiring, die, from_async, from_fn, never, suspend
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import App, Broken, Crash, app_on, both_backends, cut_off
from tests.runs.journals import (
    AnyEffect,
    AnyWorkflow,
    act,
    clock_at,
    cut,
    hang,
    in_turn,
    journal,
    made_of,
    resume,
    start,
    stopped,
)

pytestmark = pytest.mark.anyio


def held(use: AnyEffect) -> AnyEffect:
    return bracket(act("acquire"), lambda _: act("release"), lambda _: use)


class Undeclared(Exception):
    """A failure whose class no annotation declares."""


BAD_ENDS: dict[str, Callable[[], AnyEffect]] = {
    "defect": lambda: die(ValueError("bug")),
    "defect of an undeclared class": lambda: die(Crash("bug")),
    "failure between steps": lambda: fail(Broken("closed")),
    "failure of an undeclared class": lambda: fail(Undeclared("closed")),
    "failure after a step": lambda: act("use").and_then(lambda _: fail(Broken("closed"))),
    "failure that a map changed": lambda: act("bad").map_err(lambda error: Broken(f"{error}!")),
}


async def end_of(life: Any, made: AnyWorkflow, app: App) -> str:
    try:
        return str(await life(made, app))
    except Exception as defect:
        return f"defect {defect}".replace("tests.apps.Crash: ", "")


@both_backends
@pytest.mark.parametrize("bad", BAD_ENDS.values(), ids=BAD_ENDS.keys())
async def test_a_use_that_ended_badly_is_not_repeated_after_the_release(
    store: MemoryStore, bad: Callable[[], AnyEffect]
) -> None:
    """Not even by code that has been corrected, which would use what is released."""
    using = bad()

    made = made_of(lambda: held(using))

    first = await end_of(start, made, app_on(store, failing=["bad"]))
    lines = await journal(store)
    release = lines.index("B release") + 1
    for count in range(release, len(lines) + 1):
        using = bad()
        app = app_on(await cut(store, count))
        assert await end_of(resume, made, app) == first, count
        assert app.world.done == ([] if count > release else ["release"]), count
        using = act("use again")
        app = app_on(await cut(store, count))
        assert isinstance((await resume(made, app)).failure(), DefinitionChanged)
        assert app.world.done == []


@both_backends
@pytest.mark.parametrize("bad", BAD_ENDS.values(), ids=BAD_ENDS.keys())
async def test_before_the_release_began_the_use_is_repeated(
    store: MemoryStore, bad: Callable[[], AnyEffect]
) -> None:
    using = bad()

    made = made_of(lambda: held(using))

    await end_of(start, made, app_on(store, failing=["bad"]))
    shorter = await cut(store, 3)
    assert (await journal(shorter))[-1] == "C acquire"
    using = act("use again")
    app = app_on(shorter)
    assert await resume(made, app) == Success("use again")
    assert app.world.done == ["use again", "release"]


@both_backends
async def test_steps_after_a_use_that_is_not_repeated_keep_their_paths(store: MemoryStore) -> None:
    """The use had run a step and an operator of the names that the body uses afterwards."""

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        used = act("work").and_then(lambda _: par(pure(1), pure(2)))
        yield from held(used.and_then(lambda _: fail(Broken("closed")))).result()
        done = yield from par(act("a"), act("b"))
        return [*done, (yield from act("work")), (yield from act("last"))]

    await start(made, app_on(store, failing=["last"]))
    assert "B work#2" in await journal(store)
    assert "B par#2[0]/a" in await journal(store)
    app = app_on(store)
    assert await resume(made, app) == Success(["a", "b", "work", "last"])
    assert app.world.done == ["last"]


@both_backends
async def test_a_defect_is_the_same_after_any_number_of_lives(store: MemoryStore) -> None:
    made = made_of(lambda: die(Crash("bug")).on_exit(act("inner")).on_exit(act("outer")))
    first = await end_of(start, made, app_on(store))
    for release in ("inner", "outer"):
        begun = next(n for n, line in enumerate(await journal(store), 1) if release in line)
        store = await cut(store, begun)
        assert await end_of(resume, made, app_on(store)) == first


@both_backends
async def test_several_resources_are_released_last_first_over_the_lives(store: MemoryStore) -> None:
    both = acquiring(act("open-1"), lambda _: act("close-1")).and_(
        act("open-2"), lambda _: act("close-2")
    )
    made = made_of(lambda: both.use(lambda *_: die(Crash("bug"))))
    await end_of(start, made, app_on(store))
    lines = await journal(store)
    for count, line in enumerate(lines, 1):
        app = app_on(await cut(store, count))
        assert (await end_of(resume, made, app)) == "defect bug"
        closed = [name for name in app.world.done if name.startswith("close")]
        assert closed == sorted(closed, reverse=True), line
        done = " ".join(lines[:count]) + " ".join(app.world.done)
        assert all(name in done for name in ("close-1", "close-2")), line


@both_backends
async def test_a_resource_of_a_finalizer_that_took_too_long_is_not_used_again(
    store: MemoryStore,
) -> None:
    inner = bracket(act("open"), lambda _: act("close"), lambda _: hang("use"))
    made = made_of(lambda: pure("done").on_exit(inner))
    limited = partial(made.start(None, run_id="r").run, finalizer_deadline=0.5)
    with pytest.raises(TimeoutError, match=r"took more than 0\.5 s"):
        await clock_at().run(from_async(limited), app_on(store))
    lines = await journal(store)
    closing = next(number for number, line in enumerate(lines, 1) if "close" in line)
    for count in range(closing, len(lines) + 1):
        app = app_on(await cut(store, count))
        with pytest.raises(TimeoutError, match="took too long"):
            await resume(made, app)
        assert app.world.done == (["close"] if count == closing else []), lines[count - 1]


@both_backends
@pytest.mark.parametrize("is_step", [False, True], ids=["body", "step"])
@pytest.mark.parametrize("end", ["ends well", "fails"])
async def test_a_changed_use_begins_nothing_after_the_release(
    store: MemoryStore, is_step: bool, end: str
) -> None:
    """Its last step is another one now, or one more."""
    last = act("bad") if end == "fails" else pure("used")

    def body() -> AnyEffect:
        effect = held(in_turn(act("use"), last))
        return with_checkpointing("step", effect, error=Broken) if is_step else effect

    made = made_of(body)
    await start(made, app_on(store, failing=["bad"]))
    lines = await journal(store)
    last = act("use again")
    released = next(number for number, line in enumerate(lines, 1) if "release" in line)
    for count in range(released, released + 2):
        app = app_on(await cut(store, count))
        assert isinstance((await resume(made, app)).failure(), DefinitionChanged)
        assert app.world.done == []
        await resume(made, app, force=True)
        assert "use again" in app.world.done


def unrecorded(release: str, use: AnyEffect) -> AnyEffect:
    """Return a use of a resource whose acquisition is not a step."""
    return bracket(pure("resource"), lambda _: act(release), lambda _: use)


def pausing(effect: AnyEffect) -> AnyEffect:
    pause: AnyEffect = from_async(lambda _: anyio.lowlevel.checkpoint())
    return pause.and_then(lambda _: effect)


UNRECORDED: dict[str, Callable[[], AnyEffect]] = {
    "bracket": lambda: unrecorded("release", never()),
    "after a pause": lambda: pausing(unrecorded("release", pausing(never()))),
    "within a pause": lambda: unrecorded("outer", pausing(unrecorded("release", never()))),
    "branch": lambda: unrecorded("outer", pausing(par(unrecorded("release", never()), never()))),
    "beside a step": lambda: par(act("use", 5), unrecorded("release", never())),
    "step": lambda: with_checkpointing("step", pausing(unrecorded("release", never()))),
    "on_exit": lambda: pausing(never().on_exit(act("release"))),
}

CANCELLED: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "timeout": lambda use: use.timeout(2),
    "failed sibling": lambda use: par(use, sleep(2).and_then(lambda _: fail("no"))),
    "lost race": lambda use: race(use, sleep(2)),
    "lost race of steps": lambda use: race(use, act("won", 2)),
}


@both_backends
@pytest.mark.parametrize("held", UNRECORDED.values(), ids=UNRECORDED.keys())
@pytest.mark.parametrize("cancelled", CANCELLED.values(), ids=CANCELLED.keys())
async def test_a_release_that_began_is_completed_even_if_its_acquisition_was_not_recorded(
    store: MemoryStore,
    held: Callable[[], AnyEffect],
    cancelled: Callable[[AnyEffect], AnyEffect],
) -> None:
    made = made_of(lambda: in_turn(cancelled(held()).result(), act("after")))
    await start(made, app_on(store))
    lines = await journal(store)
    begun = [at for at, line in enumerate(lines, 1) if re.match(r"B (\S*/)?(release|outer)$", line)]
    assert begun
    for count in range(begun[0], len(lines)):
        app = app_on(await cut(store, count))
        await resume(made, app)
        assert ended_steps(await journal(app.checkpoints.store)) == ended_steps(lines)


def ended_steps(lines: list[str]) -> list[str]:
    return sorted(line for line in lines if re.match("[CF] ", line))


async def read_slowly(items: Iterable[str]) -> AsyncGenerator[str]:
    for item in items:
        await anyio.lowlevel.checkpoint()
        yield item


SOURCES: dict[str, Callable[[Iterable[str]], Any]] = {"list": list, "async": read_slowly}
by_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())


@both_backends
@by_source
@pytest.mark.parametrize("first", ["act", "bad"])
@pytest.mark.parametrize("limit", [1, 2, None])
async def test_an_item_that_began_after_another_is_released_when_the_resume_is_cancelled(
    store: MemoryStore, first: str, limit: int | None, source: Callable[[Iterable[str]], Any]
) -> None:
    """The first items end in local code, perhaps after a failure."""
    rest: AnyEffect = from_async(lambda _: anyio.lowlevel.checkpoint())
    items = dict.fromkeys("abc"[: limit or 3], in_turn(act(first).result(), rest))
    items["z"] = held(act("use", 5))

    def each(item: str) -> AnyEffect:
        return items[item]

    made = made_of(lambda: par_traverse(source(items), each, limit=limit, key=str).timeout(9))
    await start(made, app_on(store, failing=["bad"]))
    lines = await journal(store)
    acquired = next(number for number, line in enumerate(lines, 1) if line.endswith("z]/acquire"))
    for count in range(acquired + 1, len(lines)):
        app = app_on(await cut(store, count))
        await resume(made, app, at=100)
        shown = await journal(app.checkpoints.store)
        assert sum(line.startswith("C ") and "release" in line for line in shown) == 1, shown


async def read_from_open(items: Iterable[str]) -> AsyncGenerator[str]:
    """Read from a source that stays open, such as a queue, after it has given these items."""
    for item in items:
        yield item
    await anyio.sleep_forever()


@both_backends
@pytest.mark.parametrize("limit", [2, None])
async def test_a_failure_that_was_handled_ends_a_source_that_stays_open(
    store: MemoryStore, limit: int | None
) -> None:
    items = {"a": held(act("use", 5)), "z": act("bad", 1)}

    def each(item: str) -> AnyEffect:
        return items[item]

    both = suspend(lambda: par_traverse(read_from_open("az"), each, limit=limit, key=str))
    made = made_of(lambda: both.recover(Broken, lambda _: act("handle")))
    assert await start(made, app_on(store, failing=["bad"])) == Success("handle")
    for count, line in enumerate(await journal(store), 1):
        app = app_on(await cut(store, count), failing=["bad"])
        with anyio.fail_after(10):
            assert await resume(made, app, at=100) == Success("handle"), line


# Acquisitions that are cancelled.


def noting(action: str) -> AnyEffect:
    return from_fn(lambda app: app.world.note(action))


@step
def opened_in_a_step() -> Effect[App, Any, None]:
    return sleep(10).and_then(lambda _: noting("acquire")).map(lambda _: None)


def opened() -> AnyEffect:
    return sleep(10).and_then(lambda _: noting("acquire"))


CANCELLATIONS: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "timeout": lambda effect: effect.timeout(1).result().map(repr),
    "failed sibling": lambda effect: par(effect, sleep(1).and_then(lambda _: fail("no"))),
    "lost race": lambda effect: race([effect, sleep(1)]).map(repr),
}
each_cancellation = pytest.mark.parametrize("cancel", CANCELLATIONS.values(), ids=CANCELLATIONS)
USES: dict[str, Callable[[object], AnyEffect]] = {
    "plain": lambda _: noting("charge"),
    "step": lambda _: act("charge"),
}
each_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


@both_backends
@each_cancellation
@each_use
@pytest.mark.parametrize("acquire", [opened, opened_in_a_step])
async def test_a_use_does_not_start_after_a_cancellation_of_its_acquisition(
    store: MemoryStore,
    cancel: Callable[[AnyEffect], AnyEffect],
    use: Callable[[object], AnyEffect],
    acquire: Callable[[], AnyEffect],
) -> None:
    app = app_on(store)
    held = bracket(acquire(), lambda _: noting("release"), use)

    await TestClock().run(made_of(lambda: cancel(held)).start(None), app)

    assert app.world.done == ["acquire", "release"]


@both_backends
@each_use
async def test_a_use_does_not_start_after_a_cancellation_from_outside(
    store: MemoryStore, use: Callable[[object], AnyEffect]
) -> None:
    app = app_on(store)
    began = anyio.Event()

    async def acquire(_: object) -> None:
        began.set()
        await anyio.sleep(0.02)
        app.world.note("acquire")

    made = made_of(lambda: bracket(from_async(acquire), lambda _: noting("release"), use))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.start(None).run, app)
        await began.wait()
        tasks.cancel_scope.cancel()

    assert app.world.done == ["acquire", "release"]


@both_backends
@pytest.mark.parametrize("acquire", [sleep(1000), hang("acquire")], ids=["plain", "step"])
async def test_a_timeout_of_the_acquisition_ends_one_that_hangs(
    store: MemoryStore, acquire: AnyEffect
) -> None:
    app = app_on(store)
    held = bracket(acquire.timeout(5), lambda _: noting("release"), lambda _: noting("charge"))

    result: Any = await TestClock().run(made_of(lambda: held.timeout(1)).start(None), app)
    assert isinstance(result.failure(), TimedOut)
    await stopped(made_of(lambda: held).start(None), app, seconds=10)
    result = await TestClock().run(made_of(lambda: held).start(None), app)
    assert result.failure().seconds == 5
    assert set(app.world.done) <= {"acquire"}


# Releases that fail.


LOGGED = "a finalizer failed after a cancellation: 'STUCK'"


def stuck(_: str) -> AnyEffect:
    return fail("STUCK")


@step
def stuck_step(_: str) -> Effect[App, str, None]:
    return fail("STUCK")


def used(release: Callable[[str], AnyEffect]) -> AnyEffect:
    return bracket(pure("r"), release, lambda _: sleep(60))


def late(end: Effect[object, Any, Any]) -> AnyEffect:
    return sleep(0.01).and_then(lambda _: end)


ENDS: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "timeout": lambda use: use.timeout(0.01),
    "failed sibling": lambda use: par(use, late(fail("no"))),
    "lost race": lambda use: race([use, late(fail("no"))]),
    "won race": lambda use: race([use, late(pure("won"))]),
}


@both_backends
@pytest.mark.parametrize("release", [stuck, stuck_step])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_release_that_fails_after_a_cancellation_is_logged_and_in_the_trail(
    store: MemoryStore,
    release: Callable[[str], AnyEffect],
    end: Callable[[AnyEffect], AnyEffect],
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = made_of(lambda: end(used(release)))

    ended: Any = await made.start(None).traced().run(app_on(store))

    assert ended == Success("won") or ended.failure().suppressed == ("STUCK",)
    assert caplog.messages == [LOGGED]


@both_backends
async def test_a_release_that_fails_after_the_timeout_of_a_step_is_in_the_trail(
    store: MemoryStore,
) -> None:
    @step(timeout=0.01)
    def limited() -> Effect[App, str | TimedOut, None]:
        return used(stuck)

    traced: Any = (await made_of(limited).start(None).traced().run(app_on(store))).failure()

    assert isinstance(traced.error, TimedOut)
    assert traced.suppressed == ("STUCK",)


@both_backends
async def test_a_release_that_fails_after_a_cancellation_from_outside_is_logged(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    await cut_off(made_of(lambda: used(stuck)).start(None), app_on(store))

    assert caplog.messages == [LOGGED]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_release_that_fails_after_a_native_cancellation_is_logged(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    slowly: AnyEffect = from_async(lambda _: anyio.sleep(0.01)).and_then(lambda _: fail("STUCK"))
    made = made_of(lambda: used(lambda _: slowly))
    task = asyncio.create_task(made.start(None).run(app_on(store)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert caplog.messages == [LOGGED]
