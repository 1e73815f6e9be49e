"""Events reach their listener at once, in order, and one at a time."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Failure, Success

from effectflow import Do, Effect, TimedOut, do, fail, par_traverse, pure, sleep
from effectflow.effects import die, emit, from_fn, never
from effectflow.testing import TestClock

pytestmark = pytest.mark.anyio


@do
def counting(to: int) -> Do[object, str, str]:
    for number in range(to):
        yield from emit(number)
    return "counted"


async def test_collecting_gives_the_value_and_the_events() -> None:
    assert await counting(3).collecting().run(None) == Success(("counted", [0, 1, 2]))
    assert await pure(1).collecting().run(None) == Success((1, []))


async def test_without_a_listener_events_are_dropped() -> None:
    assert await counting(3).run(None) == Success("counted")


async def test_a_sink_gets_each_event_before_the_emitter_continues() -> None:
    log: list[str] = []

    async def slow(event: object) -> None:
        await anyio.sleep(0)
        log.append(f"took {event}")

    def noting(text: str) -> Effect[object, Any, None]:
        return from_fn(lambda _: log.append(text))

    effect = emit("a").and_then(lambda _: noting("went on")).and_then(lambda _: emit("b"))
    assert await effect.into_sink(slow).run(None) == Success(None)
    assert log == ["took a", "went on", "took b"]


async def test_a_slow_sink_holds_the_emitter_up() -> None:
    clock = TestClock()
    await clock.run(counting(5).into_sink(lambda _: sleep(10)), None)

    assert clock.monotonic() == 50


async def test_events_before_a_failure_are_kept() -> None:
    seen: list[object] = []
    failing = counting(2).and_then(lambda _: fail("no"))

    assert await failing.into_sink(seen.append).run(None) == Failure("no")
    assert seen == [0, 1]
    assert await failing.result().collecting().run(None) == Success((Failure("no"), [0, 1]))
    # Of what fails within `collecting`, the listener further out gets the events.
    assert await failing.collecting().result().collecting().run(None) == Success(
        (Failure("no"), [0, 1])
    )


async def test_events_before_a_defect_or_an_interruption_are_kept() -> None:
    seen: list[object] = []

    async def slow(event: object) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(event)

    def ending(effect: Effect[object, Any, Any]) -> Effect[object, Any, Any]:
        return counting(2).and_then(lambda _: effect).collecting()

    with pytest.raises(ZeroDivisionError):
        await ending(die(ZeroDivisionError())).into_sink(slow).run(None)
    assert seen == [0, 1]

    timed_out = await TestClock().run(ending(sleep(9)).timeout(5).into_sink(slow), None)
    assert isinstance(timed_out.failure(), TimedOut)
    assert seen == [0, 1] * 2

    with anyio.move_on_after(0.01):
        await ending(never()).into_sink(slow).run(None)
    assert seen == [0, 1] * 3


async def test_a_listener_that_fails_does_not_hide_why_the_effect_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(_: object) -> None:
        raise OSError("disk full")

    def ending(effect: Effect[object, Any, Any]) -> Effect[object, Any, Any]:
        return counting(1).and_then(lambda _: effect).collecting().into_sink(full)

    traced: Any = await ending(fail("no")).traced().run(None)
    assert traced.failure().error == "no"
    assert "disk full" in str(traced.failure())
    with pytest.raises(ZeroDivisionError) as caught:
        await ending(die(ZeroDivisionError())).run(None)
    assert "disk full" in str(caught.value.__notes__)
    assert caplog.text.count("a finalizer failed") == 2


async def test_the_inner_listener_stands_in_for_the_outer_one() -> None:
    inner = counting(2).into_sink(lambda event: emit(f"passed on {event}"))
    effect = emit("before").and_then(lambda _: inner).and_then(lambda _: emit("after"))

    assert await effect.collecting().run(None) == Success(
        (None, ["before", "passed on 0", "passed on 1", "after"])
    )


async def test_children_emit_to_the_listener_of_their_parent() -> None:
    effect = par_traverse(range(4), lambda n: emit(n), limit=2).collecting()

    value, events = (await effect.run(None)).unwrap()
    assert value == [None] * 4
    assert sorted(map(str, events)) == ["0", "1", "2", "3"]


async def test_a_sink_that_fails_is_a_defect() -> None:
    failing: Any = lambda _: fail("no")  # noqa: E731, the type refuses it
    with pytest.raises(TypeError, match="a sink failed with 'no', and it must not fail"):
        await counting(1).into_sink(failing).run(None)
