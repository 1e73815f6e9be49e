"""Failures, defects and interruptions in `@do` bodies: what a body catches, and what leaves it."""

from __future__ import annotations

from typing import Any

import pytest
from returns.result import Success

from effectflow import Do, do, par, race, with_checkpointing, workflow
from effectflow.effects import die
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, Crash, app_on, both_backends
from tests.runs.journals import (
    AnyEffect,
    act,
    cut,
    hang,
    journal,
    late,
    made_of,
    next_life,
    resume,
    start,
    stopped,
)

pytestmark = [pytest.mark.anyio, both_backends]


async def test_a_defect_of_a_step_stays_a_defect_over_the_lives(store: MemoryStore) -> None:
    """Although the body declares its class."""

    @workflow
    def made(_: object) -> Do[App, KeyError, object]:
        return (yield from with_checkpointing("look up", die(KeyError("bug"))))

    for life in (start, resume):
        with pytest.raises(KeyError, match="bug"):
            await life(made, app_on(store))


# `finally: yield` in a durable run.


def holding(using: AnyEffect) -> Any:
    """Return a workflow that releases in a `finally` block."""

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        yield from act("acquire")
        try:
            return (yield from using)
        finally:
            yield from act("release")

    return made


async def test_finally_runs_on_success(store: MemoryStore) -> None:
    app = app_on(store)
    assert await start(holding(act("use")), app) == Success("use")
    assert app.world.done == ["acquire", "use", "release"]


async def test_finally_runs_on_failure_and_lets_it_stand(store: MemoryStore) -> None:
    made = holding(act("use"))
    app = app_on(store, failing=["use"])
    assert str((await start(made, app)).failure()) == "use"
    assert (await journal(store))[-1] == "failed"  # nothing of it is tried again
    # What was released is not used again.
    again = next_life(app)
    assert str((await resume(made, again)).failure()) == "use"
    assert again.world.done == []


async def test_finally_runs_on_a_defect_of_a_step(store: MemoryStore) -> None:
    made = holding(act("use"))
    app = app_on(store)
    app.world.crashing.add("use")
    with pytest.raises(Crash):
        await start(made, app)
    assert app.world.done == ["acquire", "use", "release"]
    again = next_life(app)
    with pytest.raises(Exception, match="Crash: use#1"):
        await resume(made, again)
    assert again.world.done == []


@do
def held() -> Do[App, Any, Any]:
    try:
        return (yield from hang("use"))
    finally:
        yield from act("release")


@pytest.mark.parametrize(
    ("cancelling", "done"),
    [
        (lambda: held().timeout(1).result(), ["use"]),
        (lambda: race([held(), late("win", 1)]), ["use", "win"]),
        (lambda: par(held(), late("bad", 1)).result(), ["use", "bad"]),
    ],
    ids=["timeout", "race", "par"],
)
async def test_finally_that_yields_in_what_an_operator_cancels_is_a_defect(
    store: MemoryStore, cancelling: Any, done: list[str]
) -> None:
    made, app = made_of(cancelling), app_on(store, failing=["bad"])
    with pytest.raises(RuntimeError, match="on_exit"):
        await start(made, app)
    assert app.world.done == done


async def test_corrected_code_releases_what_the_loser_of_a_race_held(store: MemoryStore) -> None:
    using: AnyEffect = held()
    made, app = made_of(lambda: race([using, late("win", 1)])), app_on(store)
    for life in (start, resume):
        with pytest.raises(RuntimeError, match="on_exit"):
            await life(made, app)
    using = hang("use").on_exit(act("release"))
    assert await resume(made, app) == Success("win")
    assert app.world.done == ["use", "win", "release"]


async def test_finally_without_a_yield_runs_when_a_decision_cancels(store: MemoryStore) -> None:
    closed: list[str] = []

    @do
    def closing() -> Do[App, Any, Any]:
        try:
            return (yield from hang("use"))
        finally:
            closed.append("closed")

    made = made_of(lambda: closing().timeout(1).fallback("late"))
    assert await start(made, app_on(store)) == Success("late")
    assert closed == ["closed"]


async def test_an_outside_stop_leaves_finally_to_the_resume(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_on(store)
    await stopped(holding(hang("use")).start(None, run_id="r"), app)
    assert app.world.done == ["acquire", "use"]
    assert (await journal(store))[-1] == "I use"
    assert caplog.records == []
    # The resume comes to it.
    again = next_life(app)
    assert await resume(holding(act("use")), again) == Success("use")
    assert again.world.done == ["use", "release"]


async def test_a_handled_failure_is_handled_again_by_a_resume(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, list[str]]:
        try:
            first = yield from act("charge")
        except Broken as error:
            first = f"handled {error}"
            yield from act("apologize")
        return [first, (yield from act("last"))]

    await start(made, app_on(store, failing=["charge", "last"]))
    app = app_on(store)
    assert await resume(made, app) == Success(["handled charge", "last"])
    assert app.world.done == ["last"]


async def test_a_crash_after_any_entry_leads_through_the_same_handlers(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        try:
            return (yield from act("charge"))
        except Broken:
            return (yield from act("other-card"))
        finally:
            yield from act("log")

    expected = await start(made, app_on(store, failing=["charge"]))
    assert expected == Success("other-card")
    for count in range(1, len(await journal(store)) + 1):
        app = app_on(await cut(store, count), failing=["charge"])
        assert await resume(made, app) == expected
