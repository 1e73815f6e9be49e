"""Which failures a resume retries, and that a plan names the one that it does not."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from returns.result import Failure, Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    Workflow,
    bracket,
    die,
    fail,
    from_fn,
    par,
    par_all,
    pure,
    step,
    workflow,
)
from effectflow.checkpoint import BeforeStep, Failed, read_entries
from effectflow.stores import MemoryStore

pytestmark = pytest.mark.anyio


@dataclass
class Bank:
    is_down: bool = True
    done: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    bank: Bank = field(default_factory=Bank)


class Bug(Exception):
    """A defect of the tests."""


def charging(ended: Effect[object, Any, Any]) -> Effect[App, Any, int]:
    """Ends so while the bank is down."""

    def look(app: App) -> Effect[object, Any, Any]:
        app.bank.done.append("charge")
        return ended if app.bank.is_down else pure(1)

    return from_fn(look).and_then(lambda effect: effect)


@step
def charge() -> Effect[App, Any, int]:
    return charging(fail("down"))


@step(retryable=False)
def charge_once() -> Effect[App, Any, int]:
    return charging(fail("down"))


@step
def crash() -> Effect[App, Any, int]:
    return charging(die(Bug()))


@step
def act(name: str) -> Effect[App, Any, None]:
    return from_fn(lambda app: app.bank.done.append(name))


def plainly(name: str) -> Effect[App, Any, None]:
    return from_fn(lambda app: app.bank.done.append(name))


def made_of(effect: Effect[App, Any, Any]) -> Workflow[App, Any, None, Any]:
    @workflow
    def made(_: None) -> Do[App, Any, Any]:
        return (yield from effect)

    return made


async def in_two_lives(
    effect: Effect[App, Any, Any], store: MemoryStore
) -> tuple[tuple[str, ...], Any]:
    """Return the steps whose failures recur by the plan of the failed run, and how the resume ends."""
    made, app = made_of(effect), App(Checkpoints(store))
    with suppress(Bug):
        assert isinstance(await made.start(None, run_id="r").run(app), Failure)
    plan = (await made.plan("r").run(app)).unwrap()
    app.bank.is_down = False
    before = app.bank.done.count("charge")
    resumed = await made.resume("r").run(app)
    if plan.recurs:
        assert app.bank.done.count("charge") == before
        assert (await made.plan("r").run(app)).unwrap().recurs == plan.recurs
    else:
        assert (await made.plan("r").run(app)).unwrap().is_complete
    return plan.recurs, resumed


@pytest.mark.parametrize(
    ("effect", "standing"),
    [
        (charge().tap_err(lambda _: act("release")), "charge"),
        (charge().on_exit(act("release")), "charge"),
        (bracket(act("reserve"), lambda _: act("release"), lambda _: charge()), "charge"),
        (charge().or_else(lambda error: act("release").and_then(lambda _: fail(error))), "charge"),
        (par(act("a"), charge().tap_err(lambda _: act("release"))), "par[1]/charge"),
        (charge_once(), "charge_once"),
    ],
)
async def test_a_failure_that_passed_another_step_stands(
    store: MemoryStore, effect: Effect[App, Any, Any], standing: str
) -> None:
    """What that step undid, a retry would take for done."""
    assert await in_two_lives(effect, store) == ((standing,), Failure("down"))


@pytest.mark.parametrize(
    "effect",
    [
        charge(),
        charge().tap_err(lambda _: plainly("told")),
        charge().on_exit(plainly("told")),
        bracket(plainly("open"), lambda _: plainly("close"), lambda _: charge()),
        charge().or_else(lambda _: charge()),
        par_all([charge(), act("beside")]).map(lambda found: found[0]).map_err(lambda _: "down"),
        crash().on_exit(plainly("told")),
    ],
)
async def test_a_failure_that_passed_no_step_is_retried(
    store: MemoryStore, effect: Effect[App, Any, Any]
) -> None:
    assert await in_two_lives(effect, store) == ((), Success(1))


async def test_many_handled_failures_are_settled_as_one_range(store: MemoryStore) -> None:
    """So an entry after them does not grow with their number."""
    handled = par_all([charge() for _ in range(500)]).map_err(len).or_else(pure)
    made, app = made_of(handled.and_then(lambda _: act("go on"))), App(Checkpoints(store))

    await made.start(None, run_id="r").run(app)

    entries = await read_entries(store, "r")
    [going_on] = [e for e in entries if isinstance(e, BeforeStep) and e.step == "act"]
    [(first, last)] = going_on.settles
    failed = [number for number, e in enumerate(entries, 1) if isinstance(e, Failed)]
    assert len(failed) == 500
    assert (first, last) == (failed[0], failed[-1])
