"""Resources are released exactly once, no matter what happens when."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Never, cast

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, strategies as st
from returns.result import Failure, Success

from effectflow import (
    Effect,
    TimedOut,
    bracket,
    fail,
    par,
    par_all,
    par_traverse,
    pure,
    race,
    sleep,
    step,
)
from effectflow.effects import (
    TracedError,
    acquiring,
    die,
    first_success,
    from_async,
    from_fn,
    par_reduce,
    par_try_all,
)
from effectflow.testing import TestClock

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
async def test_a_use_that_raises_before_it_returns_an_effect_is_released() -> None:
    log: list[str] = []

    def broken(_: str) -> AnyEffect:
        raise ValueError("bug")

    with pytest.raises(ValueError, match="bug"):
        await bracket(writing(log, "acquired"), lambda _: writing(log, "released"), broken).run(
            None
        )
    assert log == ["acquired", "released"]


@anyio_test
async def test_a_resource_that_was_not_acquired_is_not_released() -> None:
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
def test_each_resource_is_released_once_in_reverse_no_matter_what_fails(
    kinds: list[str], data: Any
) -> None:
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

    with anyio.fail_after(30), anyio.CancelScope() as scope:
        cancelled = from_fn(lambda _: scope.cancel()).and_then(lambda _: sleep(60))
        await opened(log, cancelled, hanging).run(None, finalizer_deadline=0.05)
    assert scope.cancelled_caught
    assert log == ["acquired", "released"] * 2


# A release that fails is visible, however the use has ended.

STUCK: AnyEffect = bracket(pure("r"), lambda _: fail("STUCK"), lambda _: sleep(60))
LATE_FAILURE: AnyEffect = sleep(0.01).and_then(lambda _: fail("no"))

CANCELLED_USES: dict[str, AnyEffect] = {
    "timeout": STUCK.timeout(0.01),
    "outer of two timeouts": STUCK.timeout(5).timeout(0.01),
    "failed sibling in par": par(STUCK, LATE_FAILURE),
    "failed sibling in par_try_all": par_try_all([STUCK, LATE_FAILURE]),
    "failed sibling in par_traverse": par_traverse([STUCK, LATE_FAILURE], lambda one: one),
    "failed sibling in par_reduce": par_reduce(
        [STUCK, LATE_FAILURE], lambda one: one, lambda _: pure(1), limit=2
    ),
    "lost race": race([STUCK, LATE_FAILURE]),
    "timeout around par": par(STUCK, sleep(60)).timeout(0.01),
    "timeout of a step": step(timeout=0.01)(lambda: STUCK)(),
    "on_exit": sleep(60).on_exit(cast("Effect[object, Never, None]", fail("STUCK"))).timeout(0.01),
}


@anyio_test
@pytest.mark.parametrize("effect", CANCELLED_USES.values(), ids=CANCELLED_USES)
async def test_a_release_that_fails_after_a_cancellation_is_in_the_trail(
    effect: AnyEffect, caplog: pytest.LogCaptureFixture
) -> None:
    traced = (await TestClock().run(effect.traced(), None)).failure()

    assert traced.trail == ("and a finalizer failed: 'STUCK'",)
    assert traced.suppressed == ("STUCK",)
    assert caplog.messages == ["a finalizer failed after a cancellation: 'STUCK'"]


@anyio_test
async def test_a_release_that_fails_after_a_defect_of_a_sibling_is_in_its_notes() -> None:
    broken = sleep(0.01).and_then(lambda _: die(ValueError("bug")))
    for effect in (par(STUCK, broken), race([STUCK, broken]), par_all([STUCK, broken])):
        with pytest.raises(ValueError, match="bug") as caught:
            await effect.run(None)
        assert "and a finalizer failed: 'STUCK'" in caught.value.__notes__


@anyio_test
async def test_a_release_that_fails_in_a_race_that_was_won_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await race([STUCK, sleep(0.01)]).run(None) == Success(None)
    assert await first_success([STUCK, sleep(0.01)]).run(None) == Success(None)
    assert caplog.messages == ["a finalizer failed after a cancellation: 'STUCK'"] * 2


@anyio_test
@pytest.mark.parametrize("use", [sleep(60), pure(1), fail("use")])
async def test_a_release_that_fails_after_a_cancellation_from_outside_is_logged(
    use: AnyEffect, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes while the resource is in use, or while the release runs."""

    def acquire(_: object) -> None:
        scope.deadline = anyio.current_time() + 0.01

    failing = bracket(
        from_fn(acquire), lambda _: sleep(0.05).and_then(lambda _: fail("STUCK")), lambda _: use
    )
    with anyio.CancelScope() as scope:
        await failing.and_then(lambda _: sleep(60)).run(None)

    assert caplog.messages == ["a finalizer failed after a cancellation: 'STUCK'"]


@pytest.mark.asyncio
@pytest.mark.parametrize("use", [sleep(60), pure(1), fail("use"), die(ValueError("bug"))])
@pytest.mark.parametrize("release", [fail("STUCK"), die(OSError("STUCK"))])
async def test_a_release_that_fails_after_a_native_cancellation_is_logged(
    use: AnyEffect, release: AnyEffect, caplog: pytest.LogCaptureFixture
) -> None:
    failing = bracket(pure("r"), lambda _: sleep(0.05).and_then(lambda _: release), lambda _: use)
    task = asyncio.create_task(failing.run(None))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("a finalizer failed after a cancellation: ")
    assert "STUCK" in caplog.messages[0]


@anyio_test
async def test_a_release_that_fails_while_a_sibling_cancels_it_is_in_the_trail() -> None:
    """Its use had succeeded when the sibling failed."""
    releasing = anyio.Event()

    def release(_: str) -> AnyEffect:
        begun = from_fn(lambda _: releasing.set())
        return begun.and_then(lambda _: sleep(0.05)).and_then(lambda _: fail("STUCK"))

    sibling = from_async(lambda _: releasing.wait()).and_then(lambda _: fail("no"))
    traced = (await par(bracket(pure("r"), release, pure), sibling).traced().run(None)).failure()

    assert (traced.error, traced.suppressed) == ("no", ("STUCK",))


@anyio_test
async def test_a_finalizer_that_yields_how_the_effect_ended_has_not_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ValueError, match="bug") as caught:
        await die(ValueError("bug")).on_exit(lambda ended: sleep(0).map(lambda _: ended)).run(None)
    assert not hasattr(caught.value, "__notes__")
    assert caplog.messages == []


@anyio_test
async def test_a_use_and_its_releases_that_fail_are_one_value() -> None:
    bug = OSError("disk")
    inner = bracket(pure("b"), lambda _: die(bug), lambda _: fail("use"))
    both = bracket(pure("a"), lambda _: fail("stuck"), lambda _: inner).context("copying")

    traced = (await both.traced().run(None)).failure()

    assert (traced.error, traced.suppressed) == ("use", (bug, "stuck"))
    assert [type(line) for line in traced.trail] == [str] * 3
    assert str(traced) == (
        "copying: and a finalizer failed: 'stuck': and a finalizer failed: OSError('disk'): use"
    )
    assert pickle.loads(pickle.dumps(traced)).suppressed[1] == "stuck"


# A cancellation during the acquisition takes effect before the use.


def acquired_slowly(log: list[str], begin: Callable[[], object] = lambda: None) -> AnyEffect:
    """A bracket that calls `begin`, takes 0.25 s to acquire, and then charges."""
    begins = from_fn(lambda _: begin())
    return bracket(
        begins.and_then(lambda _: sleep(0.25)).and_then(lambda _: writing(log, "acquired")),
        lambda _: writing(log, "released"),
        lambda _: writing(log, "charged"),
    )


CANCELLATIONS: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "timeout": lambda effect: effect.timeout(0.05).result(),
    "failed sibling": lambda effect: par(
        effect, sleep(0.05).and_then(lambda _: fail("no"))
    ).result(),
    "defect of a sibling": lambda effect: par(effect, sleep(0.05).map(lambda _: 1 / 0)),
    "lost race": lambda effect: race([effect, sleep(0.05)]),
    "nested": lambda effect: par(race([effect, sleep(60)])).timeout(0.05).result(),
}
each_cancellation = pytest.mark.parametrize("cancel", CANCELLATIONS.values(), ids=CANCELLATIONS)


@anyio_test
@each_cancellation
async def test_a_use_does_not_start_after_a_cancellation_of_its_acquisition(
    cancel: Callable[[AnyEffect], AnyEffect],
) -> None:
    log: list[str] = []
    with suppress(ZeroDivisionError):
        await TestClock().run(cancel(acquired_slowly(log)), None)
    assert log == ["acquired", "released"]

    log.clear()
    held = acquiring(writing(log, "first"), lambda _: writing(log, "first released"))
    both = held.and_(sleep(0.25), lambda _: writing(log, "second released"))
    with suppress(ZeroDivisionError):
        await TestClock().run(cancel(both.use(lambda *_: writing(log, "charged"))), None)
    assert log == ["first", "second released", "first released"]


@anyio_test
async def test_a_use_does_not_start_after_a_cancellation_from_outside() -> None:
    log: list[str] = []
    with anyio.CancelScope() as scope:
        await acquired_slowly(log, scope.cancel).run(None)
    assert scope.cancelled_caught
    assert log == ["acquired", "released"]


@pytest.mark.asyncio
async def test_a_use_does_not_start_after_a_native_cancellation() -> None:
    log: list[str] = []
    begun = asyncio.Event()
    task = asyncio.create_task(acquired_slowly(log, begun.set).run(None))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["acquired", "released"]


@anyio_test
@each_cancellation
async def test_a_timeout_of_the_acquisition_ends_one_that_hangs(
    cancel: Callable[[AnyEffect], AnyEffect],
) -> None:
    log: list[str] = []
    hanging: AnyEffect = from_async(lambda _: anyio.sleep_forever())
    limited = hanging.timeout(0.05)
    effect = bracket(limited, lambda _: writing(log, "released"), lambda _: writing(log, "charged"))

    with anyio.fail_after(30), suppress(ZeroDivisionError):
        await cancel(effect).run(None)
        assert isinstance((await effect.run(None)).failure(), TimedOut)
    assert log == []
