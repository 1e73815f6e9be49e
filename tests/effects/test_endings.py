"""Failure, defect and interruption are three things, and finalizers run under each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Never

import anyio
import anyio.lowlevel
import pytest
from returns.result import Failure, Success

from effectflow import Do, Effect, EffectError, attempt, do, fail, pure
from effectflow.effects import Defect, Exit, Interruption, die, from_async, from_fn

pytestmark = pytest.mark.anyio


class Bug(Exception):
    """Something undeclared."""


def writing(log: list[str], text: str) -> Effect[object, Never, None]:
    return from_fn(lambda _: log.append(text))


async def test_a_defect_propagates_as_itself() -> None:
    bug = Bug("here")

    with pytest.raises(Bug) as caught:
        await die(bug).or_else(lambda _: pure("handled")).run(None)

    assert caught.value is bug


@dataclass(frozen=True)
class FrozenBug(Exception):
    reason: str


@dataclass(frozen=True, slots=True)
class FrozenBugWithSlots(Exception):
    reason: str


@pytest.mark.parametrize("kind", [FrozenBug, FrozenBugWithSlots])
async def test_a_frozen_defect_propagates_as_itself_without_notes(
    kind: type[FrozenBug | FrozenBugWithSlots],
) -> None:
    with pytest.raises(kind) as caught:
        await die(kind("here")).context("while looking").named("look").run(None)

    assert caught.value.reason == "here"


async def test_a_frozen_failure_is_raised_as_itself() -> None:
    with pytest.raises(FrozenBugWithSlots):
        await fail(FrozenBugWithSlots("here")).context("while looking").run_or_raise(None)


async def test_attempt_makes_only_the_named_exceptions_failures() -> None:
    assert isinstance(await attempt(lambda _: int("x"), ValueError).run(None), Failure)
    with pytest.raises(ValueError, match="invalid literal"):
        await attempt(lambda _: int("x"), KeyError).run(None)


async def test_attempt_takes_async_functions() -> None:
    async def lookup(env: dict[str, int]) -> int:
        await anyio.lowlevel.checkpoint()
        return env["missing"]

    assert isinstance(await attempt(lookup, KeyError).run({}), Failure)


async def test_run_or_raise_raises_exceptions_as_they_are_and_wraps_other_errors() -> None:
    assert await pure(3).run_or_raise(None) == 3
    with pytest.raises(KeyError):
        await fail(KeyError("k")).run_or_raise(None)
    with pytest.raises(EffectError) as caught:
        await fail("plain").run_or_raise(None)
    assert caught.value.error == "plain"


async def test_finalizers_run_once_last_first_and_are_told_how_it_ended() -> None:
    def run_with(effect: Effect[object, str, int]) -> tuple[Effect[object, str, int], list[object]]:
        ends: list[object] = []

        def note(name: str, ended: Exit[int, str]) -> Effect[object, Never, None]:
            return from_fn(lambda _: ends.append((name, ended)))

        inner = effect.on_exit(lambda ended: note("inner", ended))
        return inner.on_exit(lambda ended: note("outer", ended)), ends

    effect, ends = run_with(pure(1))
    await effect.run(None)
    assert ends == [("inner", Success(1)), ("outer", Success(1))]

    effect, ends = run_with(fail("no"))
    await effect.run(None)
    assert ends == [("inner", Failure("no")), ("outer", Failure("no"))]

    bug = Bug()
    effect, ends = run_with(die(bug))
    with pytest.raises(Bug):
        await effect.run(None)
    assert ends == [("inner", Defect(bug)), ("outer", Defect(bug))]


async def test_interruption_runs_finalizers_shielded_and_continues() -> None:
    ends: list[object] = []

    async def slow_cleanup(_: object) -> None:
        await anyio.sleep(0.01)
        ends.append("cleaned up")

    def finalizer(ended: Exit[None, str]) -> Effect[object, Never, None]:
        assert isinstance(ended, Interruption)
        return from_async(slow_cleanup)

    effect = from_async(lambda _: anyio.sleep_forever()).on_exit(finalizer)
    with anyio.move_on_after(0.01) as scope:
        await effect.run(None)
        ends.append("went on")

    assert scope.cancelled_caught
    assert ends == ["cleaned up"]


async def test_a_failing_finalizer_does_not_hide_the_defect() -> None:
    effect = die(Bug("first")).on_exit(from_fn(lambda _: 1 / 0))

    with pytest.raises(Bug) as caught:
        await effect.run(None)

    assert any("ZeroDivisionError" in note for note in caught.value.__notes__)


async def test_a_body_cannot_swallow_an_interruption() -> None:
    @do
    def stubborn() -> Do[object, str, str]:
        try:
            yield from from_async(lambda _: anyio.sleep_forever())
        except BaseException:
            return "swallowed"
        return "ended"

    with anyio.move_on_after(0.01) as scope:
        await stubborn().run(None)

    assert scope.cancelled_caught


async def test_a_value_that_is_not_an_effect_is_named() -> None:
    no_effect: Any = lambda n: n + 1  # noqa: E731 - typed so that the checkers let it pass

    with pytest.raises(TypeError, match="wrap a plain value in pure"):
        await pure(1).and_then(no_effect).run(None)
