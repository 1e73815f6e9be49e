"""What was released is not used again, and what was acquired is released."""

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
    acquiring,
    bracket,
    die,
    fail,
    from_async,
    never,
    par,
    par_traverse,
    pure,
    race,
    sleep,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import DefinitionChanged, NotSerializable
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, Crash, app_on, both_backends
from tests.workflows.journals import (
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
)

pytestmark = pytest.mark.anyio


def held(use: AnyEffect) -> AnyEffect:
    return bracket(act("acquire"), lambda _: act("release"), lambda _: use)


BAD_ENDS: dict[str, Callable[[], AnyEffect]] = {
    "defect": lambda: die(ValueError("bug")),
    "defect of an undeclared class": lambda: die(Crash("bug")),
    "failure between steps": lambda: fail(Broken("closed")),
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
    """Its end is not a step's, so that it would otherwise run again, and might succeed."""
    using = bad()

    made = made_of(lambda: held(using))

    first = await end_of(start, made, app_on(store, failing=["bad"]))
    lines = await journal(store)
    release = next(number for number, line in enumerate(lines, 1) if "release" in line)
    using = act("use again")
    for count in range(release, len(lines) + 1):
        app = app_on(await cut(store, count))
        assert await end_of(resume, made, app) == first, count
        assert app.world.done == ([] if count > release else ["release"]), count


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


class Undeclared(Exception):
    """A failure whose class no annotation declares."""


@both_backends
async def test_a_use_with_an_undeclared_failure_ends_the_same(store: MemoryStore) -> None:
    used = in_turn(act("use"), fail(Undeclared("closed")))
    made = made_of(lambda: in_turn(held(used).result(), act("use")))
    expected = await start(made, app_on(store))
    lines = await journal(store)
    for count in range(lines.index("B bracket/release (failure)") + 1, len(lines) + 1):
        app = app_on(await cut(store, count))
        assert await resume(made, app) == expected, count
        assert "acquire" not in app.world.done


@both_backends
async def test_a_use_that_could_succeed_after_the_release_begins_nothing(
    store: MemoryStore,
) -> None:
    using: AnyEffect = fail(Undeclared("closed"))

    made = made_of(lambda: held(using))

    await start(made, app_on(store))
    for other in (lambda: act("use again"), lambda: pure("well"), lambda: fail(Undeclared("no"))):
        using = other()
        app = app_on(store)
        error = (await resume(made, app)).failure()
        assert isinstance(error, NotSerializable)
        assert "Declare its class" in str(error)
        assert app.world.done == []


@both_backends
async def test_an_inner_release_does_not_let_such_a_use_begin_anything(store: MemoryStore) -> None:
    """The inner resource was used and released, and only then did the use of the outer one fail."""
    inner = bracket(act("open"), lambda _: act("close"), lambda _: act("use"))
    end: AnyEffect = fail(Undeclared("closed"))

    made = made_of(lambda: held(in_turn(inner, end)))

    await start(made, app_on(store))
    lines = await journal(store)
    for other in (act("use again"), pure("well")):
        end = other
        app = app_on(await cut(store, lines.index("B bracket/release (failure)") + 1))
        assert isinstance((await resume(made, app)).failure(), NotSerializable)
        assert app.world.done == []


@both_backends
async def test_a_defect_is_the_same_after_any_number_of_lives(store: MemoryStore) -> None:
    """The second life records the defect again, with the release that it begins."""
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
    limited = partial(made.start(None, run_id="r").run, finalizer_deadline=5)
    with pytest.raises(TimeoutError, match="took more than 5 s"):
        await clock_at().run(from_async(limited), app_on(store))
    lines = await journal(store)
    closing = next(number for number, line in enumerate(lines, 1) if "close" in line)
    for count in range(closing, len(lines) + 1):
        app = app_on(await cut(store, count))
        with pytest.raises(Exception, match="too much time in an earlier life"):
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


# Racers that wake in the same tick.


@both_backends
@pytest.mark.parametrize("is_resource", [False, True], ids=["step", "resource"])
async def test_a_racer_that_lost_in_the_same_tick_starts_no_step(*, is_resource: bool) -> None:
    resource: AnyEffect = bracket(act("loser"), lambda _: act("release"), pure)
    # Which of them wakes first is drawn on trio, so it is tried often.
    for _ in range(20):
        go, store = anyio.Event(), MemoryStore()
        waiting: AnyEffect = from_async(lambda _, go=go: go.wait())
        loser = waiting.and_then(lambda _: resource if is_resource else act("loser"))
        made = made_of(partial(race, [waiting, loser]))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.start(None, run_id="r").run, app_on(store))
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            go.set()
        lines = await journal(store)
        after = lines[lines.index("D race") :]
        # A resource whose acquisition began before the decision is released.
        assert "loser" not in " ".join(after[1:]) or "B race[1]/loser" in lines[: -len(after)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancellation_that_nothing_asked_for_is_a_defect(store: MemoryStore) -> None:
    async def stray(_: object) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    app = app_on(store)
    with pytest.raises(RuntimeError, match="nothing has cancelled it"):
        await start(made_of(lambda: held(from_async(stray))), app)
    assert app.world.done == ["acquire", "release"]


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
    begun = [at for at, line in enumerate(lines, 1) if re.match(r"B\S* \S*(release|outer) ", line)]
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
    """The first items end in an unrecorded wait, or in a failure that nothing settled."""
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


@both_backends
@by_source
async def test_an_item_that_began_later_is_released_when_the_resume_fails(
    store: MemoryStore, source: Callable[[Iterable[str]], Any]
) -> None:
    items: dict[str, AnyEffect] = {
        "a": act("a").result(),
        "b": act("b").result(),
        "c": held(act("use", 5)),
    }

    def each(item: str) -> AnyEffect:
        return items[item]

    made = made_of(lambda: par_traverse(source(items), each, limit=1, key=str).result())
    await start(made, app_on(store, failing=["a", "b"]))
    lines = await journal(store)
    acquired = next(number for number, line in enumerate(lines, 1) if line.endswith("c]/acquire"))
    app = app_on(await cut(store, acquired + 1))
    app.world.crashing.add("a")
    with pytest.raises(Crash):
        await resume(made, app)
    shown = await journal(app.checkpoints.store)
    assert sum(line.startswith("C ") and "release" in line for line in shown) == 1, shown
