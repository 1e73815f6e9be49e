"""Resources are released exactly once, whatever happens and whenever it happens."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from returns.result import Failure, Success

from effectflow import Effect, acquiring, bracket, die, fail, from_async, from_fn, pure, sleep
from effectflow.effects import TracedError

AnyEffect = Effect[object, Any, Any]
anyio_test = pytest.mark.anyio


def writing(log: list[str], text: str) -> AnyEffect:
    def write(_: object) -> str:
        log.append(text)
        return text

    return from_fn(write)


def opened(log: list[str], use: AnyEffect, release: AnyEffect | None = None) -> AnyEffect:
    """A bracket that writes down when it acquires and releases."""
    return bracket(
        writing(log, "acquired"),
        lambda _: writing(log, "released").and_then(lambda _: release or pure(None)),
        lambda _: use,
    )


@anyio_test
async def test_a_resource_is_released_after_success_failure_and_defect() -> None:
    log: list[str] = []

    assert await opened(log, pure(1)).run(None) == Success(1)
    assert await opened(log, fail("no")).run(None) == Failure("no")
    with pytest.raises(ValueError, match="bug"):
        await opened(log, die(ValueError("bug"))).run(None)
    assert log == ["acquired", "released"] * 3


@anyio_test
async def test_a_use_that_raises_before_it_gives_an_effect_is_released_from() -> None:
    log: list[str] = []

    def broken(_: str) -> AnyEffect:
        raise ValueError("bug")

    with pytest.raises(ValueError, match="bug"):
        await bracket(writing(log, "acquired"), lambda _: writing(log, "released"), broken).run(
            None
        )
    assert log == ["acquired", "released"]


@anyio_test
async def test_what_was_not_acquired_is_not_released() -> None:
    log: list[str] = []
    failing = bracket(fail("no"), lambda _: writing(log, "released"), lambda _: pure(1))

    assert await failing.run(None) == Failure("no")
    assert log == []


@anyio_test
@pytest.mark.parametrize("at", range(9))
async def test_a_cancellation_at_any_moment_releases_exactly_once(at: int) -> None:
    """It lands within acquire, within use, or within release: each of three turns of the loop."""
    log: list[str] = []

    def turns(text: str) -> AnyEffect:
        async def perform(_: object) -> None:
            for turn in range(3):
                log.append(f"{text} {turn}")
                await anyio.lowlevel.checkpoint()
            log.append(f"{text} done")

        return from_async(perform)

    effect = bracket(turns("acquire"), lambda _: turns("release"), lambda _: turns("use"))
    with anyio.CancelScope() as scope:

        async def cancel_then() -> None:
            while len(log) <= at:
                await anyio.lowlevel.checkpoint()
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_then)
            await effect.run(None)

    assert log.count("acquire done") == 1
    assert log.count("release done") == 1
    assert log[-1] == "release done"


@anyio_test
async def test_a_failing_release_joins_the_error_of_the_use_and_never_replaces_it() -> None:
    log: list[str] = []
    stuck = fail("stuck")

    both = await opened(log, fail("use"), stuck).traced().run(None)
    assert both == Failure(TracedError("use", ("and a finalizer failed: 'stuck'",)))

    error = OSError("use")
    await opened(log, fail(error), die(ValueError("bug"))).run(None)
    assert error.__notes__ == ["and a finalizer failed: ValueError('bug')"]

    with pytest.raises(KeyError) as caught:
        await opened(log, die(KeyError("k")), stuck).run(None)
    assert caught.value.__notes__ == ["and a finalizer failed: 'stuck'"]


@anyio_test
async def test_a_failing_release_after_a_good_use_is_the_failure() -> None:
    assert await opened([], pure(1), fail("stuck")).run(None) == Failure("stuck")
    with pytest.raises(ValueError, match="bug"):
        await opened([], pure(1), die(ValueError("bug"))).run(None)


@anyio_test
async def test_several_resources_are_released_last_first_even_if_one_fails() -> None:
    log: list[str] = []

    def opening(name: str) -> AnyEffect:
        return writing(log, f"open {name}").map(lambda _: name)

    def closing(name: str) -> AnyEffect:
        ending: AnyEffect = fail("stuck") if name == "b" else pure(None)
        return writing(log, f"close {name}").and_then(lambda _: ending)

    three = acquiring(opening("a"), closing).and_(opening("b"), closing).and_(opening("c"), closing)
    outcome = await three.use(lambda a, b, c: pure(a + b + c)).run(None)

    assert outcome == Failure("stuck")
    assert log == ["open a", "open b", "open c", "close c", "close b", "close a"]


@anyio_test
async def test_resources_before_one_that_cannot_be_acquired_are_released() -> None:
    log: list[str] = []
    two = acquiring(writing(log, "a"), lambda _: writing(log, "close a")).and_(
        fail("no b"), lambda _: writing(log, "never")
    )

    assert await two.use(lambda a, b: pure(None)).run(None) == Failure("no b")
    assert log == ["a", "close a"]


@given(st.lists(st.sampled_from(["good", "failing", "buggy"]), max_size=5), st.data())
def test_whatever_fails_each_is_released_once_in_reverse(kinds: list[str], data: Any) -> None:
    log: list[str] = []
    use = data.draw(st.sampled_from(["good", "failing", "buggy"]))

    def ending(kind: str) -> AnyEffect:
        return {"good": pure(1), "failing": fail("no"), "buggy": die(ValueError("bug"))}[kind]

    effect: AnyEffect = ending(use)
    for number, kind in reversed(list(enumerate(kinds))):
        effect = _nested(log, number, ending(kind), effect)
    with suppress(ValueError):
        effect.run_sync(None)

    numbers = [str(number) for number in range(len(kinds))]
    assert log == [f"open {n}" for n in numbers] + [f"close {n}" for n in reversed(numbers)]


def _nested(log: list[str], number: int, release: AnyEffect, inner: AnyEffect) -> AnyEffect:
    return bracket(
        writing(log, f"open {number}"),
        lambda _: writing(log, f"close {number}").and_then(lambda _: release),
        lambda _: inner,
    )


@anyio_test
async def test_a_finalizer_that_hangs_is_ended_by_its_deadline() -> None:
    log: list[str] = []
    hanging: AnyEffect = from_async(lambda _: anyio.sleep_forever())

    with pytest.raises(TimeoutError, match=r"more than 0\.05 s"):
        await opened(log, pure(1), hanging).run(None, finalizer_deadline=0.05)

    with anyio.move_on_after(0.01) as scope, anyio.fail_after(5):
        await opened(log, sleep(60), hanging).run(None, finalizer_deadline=0.05)
    assert scope.cancelled_caught
    assert log == ["acquired", "released"] * 2
