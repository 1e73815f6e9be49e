"""Tracebacks show the code of users, and one frame of effectflow that says how to see the others."""

from __future__ import annotations

import json
import pickle
import traceback
from collections.abc import Callable
from io import StringIO
from pdb import Pdb
from typing import Any

import pytest

from effectflow import Do, Effect, do, effect, fail, from_blocking, par, pure, sleep
from effectflow.effects import EffectError, from_fn, tracebacks


class Declined(Exception):
    pass


@effect(errors=Declined)
def charge(env: object, text: str) -> int:
    if text == "declined":
        raise Declined
    return json.loads(text)  # a line of the user


@do
def inner(text: str) -> Do[object, Declined, int]:
    yield from sleep(0)
    amount = yield from charge(text)
    return amount


@do
def outer(text: str) -> Do[object, Declined, int]:
    return 1 + (yield from inner(text))


@do
async def awaiting(text: str) -> int:
    return await helper(text)


async def helper(text: str) -> int:
    return 1 + await inner(text)


def lines_of(error: BaseException) -> list[str]:
    """Return the lines of a traceback that begin where effectflow was called."""
    lines = [str(frame.line) for frame in traceback.extract_tb(error.__traceback__)]
    return lines[lines.index(HINT) + 1 :] if HINT in lines else lines


HINT = "raise raised  # `python -X dev` shows the frames of effectflow, too"

BODIES = [
    "return 1 + (yield from inner(text))",
    "amount = yield from charge(text)",
]


def test_a_defect_shows_the_frames_of_users_and_of_what_they_call() -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        outer("no json").run_sync(None)
    lines = lines_of(raised.value)
    assert lines[:3] == [*BODIES, "return json.loads(text)  # a line of the user"]
    assert lines[-1].startswith("raise JSONDecodeError")
    assert len(traceback.format_exception(raised.value)) < 15


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_failure_shows_the_place_in_each_body_that_it_came_through(backend: Any) -> None:
    error = outer("declined").run_sync(None, backend=backend).failure()
    assert lines_of(error) == [*BODIES, "raise Declined"]
    with pytest.raises(Declined) as raised:
        outer("declined").run_sync_or_raise(None, backend=backend)
    assert lines_of(raised.value) == [*BODIES, "raise Declined"]


def test_a_failure_in_a_coroutine_shows_the_places_in_its_functions() -> None:
    error = awaiting("declined").run_sync(None).failure()
    assert lines_of(error) == [
        "return await helper(text)",
        "return 1 + await inner(text)",
        "amount = yield from charge(text)",
        "raise Declined",
    ]


@pytest.mark.parametrize(
    "around",
    [
        lambda body: par(pure(1), body),
        lambda body: body.timeout(60),
        lambda body: pure(None).and_then(lambda _: body).context("loading"),
    ],
    ids=["par", "timeout", "and_then"],
)
def test_operators_add_no_frames(around: Callable[[Effect[object, Any, Any]], Any]) -> None:
    error = around(outer("declined")).run_sync(None).failure()
    assert lines_of(error) == [*BODIES, "raise Declined"]


def test_a_thread_adds_no_frames() -> None:
    def read(_: object) -> int:
        return json.loads("")["price"]  # in a thread

    with pytest.raises(json.JSONDecodeError) as raised:
        from_blocking(read).run_sync(None)
    assert lines_of(raised.value)[0] == 'return json.loads("")["price"]  # in a thread'


def test_causes_are_shown_like_the_error() -> None:
    @do
    def translating() -> Do[object, Declined, int]:
        try:
            return (yield from outer("no json"))
        except json.JSONDecodeError as cause:
            raise LookupError("no price") from cause

    with pytest.raises(LookupError) as raised:
        translating().run_sync(None)
    cause = raised.value.__cause__
    assert cause is not None
    assert lines_of(cause)[:2] == ['return (yield from outer("no json"))', BODIES[0]]


def test_where_effectflow_itself_raised_stays() -> None:
    with pytest.raises(TypeError) as raised:
        from_fn(lambda _: sleep("soon").run_sync(None)).run_sync(None)  # pyright: ignore[reportArgumentType]
    assert "effectflow" in traceback.extract_tb(raised.value.__traceback__)[-1].filename


def test_a_failure_that_nothing_raised_shows_where_it_was_run() -> None:
    for error in ("refused", Declined()):
        with pytest.raises((EffectError, Declined)) as raised:
            fail(error).run_sync_or_raise(None)
        assert lines_of(raised.value) == []


def test_debug_mode_shows_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "IS_DEBUG", True)
    with pytest.raises(json.JSONDecodeError) as raised:
        outer("no json").run_sync(None)
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert {"interpret", "run_until_complete", "inner"} <= {*names}


def test_a_shared_error_shows_only_its_last_use() -> None:
    shared = Declined("no")

    @do
    def body() -> Do[object, Declined, int]:
        return (yield from fail(shared))

    for _ in range(4):
        assert body().run_sync(None).failure() is shared
        assert lines_of(shared) == ["return (yield from fail(shared))"]


def test_a_failure_that_went_through_bodies_can_be_sent_to_another_process() -> None:
    error = outer("declined").run_sync(None).failure()
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is Declined
    assert outer("declined").or_else(lambda _: fail(again)).run_sync(None).failure() is again


def test_next_in_a_debugger_steps_over_effectflow() -> None:
    commands, shown = StringIO("n\n" * 3 + "c\n"), StringIO()
    debugger = Pdb(
        stdin=commands, stdout=shown, nosigint=True, skip=["effectflow.*", "anyio.*", "asyncio.*"]
    )

    @do
    def debugged() -> Do[object, Declined, int]:
        debugger.set_trace()
        amount = yield from inner("4")
        return amount + 1

    assert debugged().run_sync(None).unwrap() == 5
    places = [line[3:] for line in shown.getvalue().splitlines() if line.startswith("-> ")]
    # pdb stops once more where a generator has ended.
    assert places[0] == 'amount = yield from inner("4")'
    assert places[-1] == "return amount + 1"
    assert BODIES[1] not in places
