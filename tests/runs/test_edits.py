"""Edits of a workflow between two lives of a run: refused before anything is executed, or harmless.

The first life of each run goes up to a wait for the signal `pause`. It ends there, suspended by a worker,
or it has crashed before that: as soon as the last step before the wait has ended. Then the code is edited
and the run resumed.

The verdicts follow from one rule: a replay begins nothing new before it has taken everything that is
recorded, in its order. The names of steps, their occurrences and the branches of parallel operators
identify what is recorded. Timeouts, retries, sagas, brackets and finalizers do not.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from returns.result import Result, Success

from effectflow import (
    Checkpoints,
    Client,
    Do,
    Effect,
    RetryPolicy,
    Signal,
    TimedOut,
    bracket,
    compensate,
    do,
    now,
    par,
    par_all,
    par_traverse,
    publish,
    pure,
    race,
    random,
    saga,
    sleep,
    spawn,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import (
    Completed,
    DefinitionChanged,
    Failed,
    RunConflict,
    RunStatus,
    StepInputChanged,
    find_run,
    read_entries,
)
from effectflow.effects import asks, first_success, from_fn, par_try_all, traverse
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import App, Broken, World, both_backends, note
from tests.runs.journals import AnyEffect, AnyWorkflow, act, cut, made_of
from tests.service.conftest import Service
from tests.service.lives import info_of, suspended, working

pytestmark = pytest.mark.anyio

logger = logging.getLogger(__name__)

pause: Signal[str] = Signal("pause", str)
other: Signal[str] = Signal("other", str)

POLICY = RetryPolicy.constant(0).with_max_retries(3)


# Steps.


@step
def charge(amount: int) -> Effect[App, Broken, str]:
    return note(f"charge {amount}").map(lambda _: f"{amount} paid")


@step(name="charge")
def charge_the_card(amount: int) -> Effect[App, Broken, str]:
    """The same step, by a function of another name."""
    return note(f"charge {amount}").map(lambda _: f"{amount} paid")


@step(name="charge")
def charge_in_another_way(amount: int) -> Effect[App, Broken, str]:
    """The same step, with other code."""
    return note("another way").map(lambda _: f"{amount} paid")


@step(name="charge", retry=POLICY)
def charge_again(amount: int) -> Effect[App, Broken, str]:
    return note(f"charge {amount}").map(lambda _: f"{amount} paid")


@step(name="charge", retry=RetryPolicy.exponential(5).with_max_retries(1), timeout=30)
def charge_in_time(amount: int) -> Effect[App, Broken | TimedOut, str]:
    return note(f"charge {amount}").map(lambda _: f"{amount} paid")


@step(name="charge", at_most_once=True)
def charge_at_most_once(amount: int) -> Effect[App, Broken, str]:
    return note(f"charge {amount}").map(lambda _: f"{amount} paid")


@step
def decline() -> Effect[App, Broken, str]:
    return note("decline").and_then(lambda _: _fail())


def _fail() -> Effect[App, Broken, str]:
    return from_fn(lambda _: None).map(lambda _: "").ensure(lambda _: False, Broken("declined"))


def quote(item: str) -> AnyEffect:
    """Return a step with an argument, which parallel operators map over items."""
    return _quote(item)


@step(name="quote")
def _quote(item: str) -> Effect[App, Broken, str]:
    return note(f"quote {item}").map(lambda _: f"price of {item}")


def logs(line: str) -> Callable[[object], AnyEffect]:
    """Return a finalizer that acts on nothing but this process."""
    return lambda _: from_fn(lambda _: logger.info("%s", line))


def undo(_: object) -> AnyEffect:
    return act("undo")


def is_app(env: object) -> bool:
    return isinstance(env, App)


# Workflows.


@do
def in_order(*effects: AnyEffect) -> Do[App, Any, list[Any]]:
    """Run effects one after another, and yield what each of them yields."""
    values: list[Any] = []
    for effect in effects:
        values.append((yield from effect))
    return values


def code(*effects: AnyEffect) -> AnyWorkflow:
    """Return a workflow of these effects, one after another."""
    return made_of(lambda: in_order(*effects))


def upto(*effects: AnyEffect) -> AnyWorkflow:
    """Return a workflow of these effects, the wait for `pause`, and the step `ship`."""
    return code(*effects, pause.wait(), act("ship"))


@do
def handling(*classes: type[Exception]) -> Do[App, Any, str]:
    """Handle the failure of a step by another step, if it is of one of these classes."""
    try:
        return (yield from decline())
    except classes:
        return (yield from act("apologize"))


@do
def in_a_helper() -> Do[App, Any, str]:
    logger.info("in a helper")
    return (yield from charge(5))


def called(name: str = "inner", amount: int | None = None) -> AnyEffect:
    """Return the call of a workflow that charges, and has the amount as its input."""

    @workflow(name=name)
    def inner(given: int) -> Do[App, Any, str]:
        return (yield from charge(given))

    return inner.call(5 if amount is None else amount)


# Verdicts.


@dataclass(frozen=True)
class Refused:
    """The edited code is refused. The message names what is `recorded`, and what the code does `now`."""

    recorded: str
    now: str


@dataclass(frozen=True)
class Accepted:
    """The run continues. `new` is what the edited code executes before the step `ship`."""

    new: Sequence[str] = ()


HARMLESS = Accepted()


Verdict = Refused | Accepted


@dataclass(frozen=True)
class Edit:
    """The code of a workflow before and after an edit.

    Attributes:
        crashed: the verdict if the process died once the last step before the wait had ended.
        suspended: the verdict if a worker has suspended the run at its wait.
        failing: the actions that fail in the first life.
    """

    what: str
    before: AnyWorkflow
    after: AnyWorkflow
    crashed: Verdict
    suspended: Verdict
    failing: tuple[str, ...] = ()


def edit(what: str, before: AnyWorkflow, after: AnyWorkflow, both: Verdict, **options: Any) -> Edit:
    """Return an edit with the same verdict in both cases."""
    return Edit(what, before, after, both, both, **options)


CHARGED = upto(charge(5))
TWO = upto(act("reserve"), charge(5))
QUOTED = upto(par_traverse(["cap", "hat"], quote))
KEYED = upto(par_traverse(["cap", "hat"], quote, key=str))
SLEPT = upto(sleep(0.001), charge(5))

STEPS = [
    edit("rename a step", CHARGED, upto(act("bill")), Refused("charge", "bill")),
    edit("rename the first of two", TWO, upto(act("book"), charge(5)), Refused("reserve", "book")),
    edit("remove the last step", TWO, upto(act("reserve")), Refused("charge", "pause")),
    edit("remove the first step", TWO, CHARGED, Refused("reserve", "charge")),
    edit("remove all and end", CHARGED, code(pure(1)), Refused("charge", "end")),
    edit(
        "insert a step before all",
        TWO,
        upto(act("check"), act("reserve"), charge(5)),
        Refused("reserve", "check"),
    ),
    edit(
        "insert a step between two",
        TWO,
        upto(act("reserve"), act("check"), charge(5)),
        Refused("charge", "check"),
    ),
    Edit(
        "insert a step after all",
        TWO,
        upto(act("reserve"), charge(5), act("check")),
        crashed=Accepted(["check"]),
        suspended=Refused("pause", "check"),
    ),
    edit(
        "insert a step after the wait",
        TWO,
        code(act("reserve"), charge(5), pause.wait(), act("check"), act("ship")),
        Accepted(["check"]),
    ),
    edit("swap two steps", TWO, upto(charge(5), act("reserve")), Refused("reserve", "charge")),
    edit("execute a step twice", CHARGED, upto(charge(4), charge(5)), Refused("5", "4")),
    Edit(
        "execute a step twice, the first time as before",
        CHARGED,
        upto(charge(5), charge(5)),
        crashed=Accepted(["charge 5"]),
        suspended=Refused("pause", "charge#2"),
    ),
    edit("change the arguments", CHARGED, upto(charge(6)), Refused("5", "6")),
    edit("change the retry policy", upto(charge_again(5)), upto(charge_in_time(5)), HARMLESS),
    edit("add a retry policy", CHARGED, upto(charge_again(5)), HARMLESS),
    edit("remove a retry policy and a timeout", upto(charge_in_time(5)), CHARGED, HARMLESS),
    edit("mark a completed step at_most_once", CHARGED, upto(charge_at_most_once(5)), HARMLESS),
    edit("rename the function and keep name=", CHARGED, upto(charge_the_card(5)), HARMLESS),
    edit("change the code of a completed step", CHARGED, upto(charge_in_another_way(5)), HARMLESS),
    edit("move a step into a helper", CHARGED, upto(in_a_helper()), HARMLESS),
    edit(
        "replace a list by traverse",
        upto(in_order(quote("cap"), quote("hat"))),
        upto(traverse(["cap", "hat"], quote)),
        HARMLESS,
    ),
]

WRAPS = [
    edit("wrap it in .timeout", CHARGED, upto(charge(5).timeout(60)), HARMLESS),
    edit("wrap it in .retry", CHARGED, upto(charge(5).retry(POLICY)), HARMLESS),
    edit("wrap it in saga", CHARGED, upto(saga(charge(5))), HARMLESS),
    edit(
        "wrap it in saga and compensate", CHARGED, upto(saga(compensate(charge(5), undo))), HARMLESS
    ),
    edit("wrap it in .on_exit", CHARGED, upto(charge(5).on_exit(logs("exit")(None))), HARMLESS),
    edit(
        "acquire it by bracket", CHARGED, upto(bracket(charge(5), logs("release"), pure)), HARMLESS
    ),
    edit(
        "use a local resource around it",
        CHARGED,
        upto(bracket(pure("file"), logs("close"), lambda _: charge(5))),
        HARMLESS,
    ),
    edit("wrap it in .result", CHARGED, upto(charge(5).result().map(Result.unwrap)), HARMLESS),
    edit(
        "wrap it in .map and .context",
        CHARGED,
        upto(charge(5).map(str).context("paying")),
        HARMLESS,
    ),
    edit(
        "wrap it in race", CHARGED, upto(race([charge(5), sleep(60)])), Refused("charge", "race[")
    ),
    edit("wrap it in par", CHARGED, upto(par(charge(5))), Refused("charge", "par[")),
    edit(
        "wrap it in par beside another",
        CHARGED,
        upto(par(act("b"), charge(5))),
        Refused("charge", "par["),
    ),
    edit("wrap it in par_all", CHARGED, upto(par_all([charge(5)])), Refused("charge", "par_all[")),
    edit(
        "wrap it in par_try_all",
        CHARGED,
        upto(par_try_all([charge(5)])),
        Refused("charge", "par_try_all["),
    ),
    edit(
        "wrap it in par_traverse",
        CHARGED,
        upto(par_traverse([5], charge)),
        Refused("charge", "par_traverse["),
    ),
    edit(
        "wrap it in first_success",
        CHARGED,
        upto(first_success([charge(5), act("b")])),
        Refused("charge", "first_success["),
    ),
    edit(
        "wrap it in a step",
        CHARGED,
        upto(with_checkpointing("outer", charge(5))),
        Refused("charge", "outer"),
    ),
    edit(
        "unwrap a step of a step",
        upto(with_checkpointing("outer", charge(5))),
        CHARGED,
        Refused("outer", "charge"),
    ),
    edit("unwrap a timeout", upto(charge(5).timeout(60)), CHARGED, HARMLESS),
    edit("unwrap a saga", upto(saga(charge(5))), CHARGED, HARMLESS),
    edit(
        "move two steps into branches",
        TWO,
        upto(par(act("reserve"), charge(5))),
        Refused("reserve", "par["),
    ),
    edit(
        "move two steps out of branches",
        upto(par(act("reserve"), charge(5))),
        TWO,
        Refused("par[", "reserve"),
    ),
    edit(
        "unwrap a retry that was needed",
        upto(quote("cap").retry(POLICY)),
        upto(quote("cap")),
        Refused("'sleep'", "end"),
        failing=("quote cap#1",),
    ),
]

FINALIZERS = [
    edit(
        "remove a finished finalizer",
        upto(charge(5).on_exit(act("log"))),
        CHARGED,
        Refused("log", "pause"),
    ),
    edit(
        "change a finished finalizer",
        upto(charge(5).on_exit(act("log"))),
        upto(charge(5).on_exit(act("note"))),
        Refused("log", "note"),
    ),
    Edit(
        "add a finalizer with a step",
        CHARGED,
        upto(charge(5).on_exit(act("log"))),
        crashed=Accepted(["log"]),
        suspended=Refused("pause", "log"),
    ),
    edit(
        "change a release that has not begun",
        code(bracket(charge(5), lambda _: act("close"), lambda _: pause.wait()), act("ship")),
        code(bracket(charge(5), lambda _: act("shut"), lambda _: pause.wait()), act("ship")),
        Accepted(["shut"]),
    ),
    edit(
        "change an undo that was executed",
        upto(saga(compensate(charge(5), undo).and_then(lambda _: _fail())).fallback("")),
        upto(
            saga(
                compensate(charge(5), lambda _: act("refund")).and_then(lambda _: _fail())
            ).fallback("")
        ),
        Refused("undo", "refund"),
    ),
    edit(
        "remove the saga of an undo that was executed",
        upto(saga(compensate(charge(5), undo).and_then(lambda _: _fail())).fallback("")),
        upto(charge(5).and_then(lambda _: _fail()).fallback("")),
        Refused("undo", "pause"),
    ),
    edit(
        "handle other failures",
        upto(handling(Broken)),
        upto(handling(KeyError)),
        Refused("apologize", "end"),
    ),
    edit(
        "handle more failures", upto(handling(Broken)), upto(handling(KeyError, Broken)), HARMLESS
    ),
]

ITEMS = [
    edit(
        "change the key= of completed items",
        KEYED,
        upto(par_traverse(["cap", "hat"], quote, key=str.upper)),
        Refused("par_traverse[cap]", "par_traverse[CAP]"),
    ),
    edit(
        "add a key= to completed items",
        QUOTED,
        KEYED,
        Refused("par_traverse[0]", "par_traverse[cap]"),
    ),
    edit(
        "remove the key= of completed items",
        KEYED,
        QUOTED,
        Refused("par_traverse[cap]", "par_traverse[0]"),
    ),
    edit(
        "change the order of keyed items",
        KEYED,
        upto(par_traverse(["hat", "cap"], quote, key=str)),
        HARMLESS,
    ),
    edit(
        "change the order of items without keys",
        QUOTED,
        upto(par_traverse(["hat", "cap"], quote)),
        Refused("cap", "hat"),
    ),
    edit(
        "remove a completed item",
        QUOTED,
        upto(par_traverse(["cap"], quote)),
        Refused("par_traverse[1]/quote", "par_traverse[0]/quote"),
    ),
    edit(
        "remove a completed item with a key",
        KEYED,
        upto(par_traverse(["cap"], quote, key=str)),
        Refused("par_traverse[hat]/quote", "par_traverse[cap]/quote"),
    ),
    Edit(
        "add an item",
        KEYED,
        upto(par_traverse(["cap", "hat", "tie"], quote, key=str)),
        crashed=Accepted(["quote tie"]),
        suspended=Refused("pause", "par_traverse[tie]"),
    ),
    Edit(
        "add an item without a key at the end",
        QUOTED,
        upto(par_traverse(["cap", "hat", "tie"], quote)),
        crashed=Accepted(["quote tie"]),
        suspended=Refused("pause", "par_traverse[2]"),
    ),
    edit(
        "add an item without a key at the beginning",
        QUOTED,
        upto(par_traverse(["tie", "cap", "hat"], quote)),
        Refused("cap", "tie"),
    ),
    edit("add a limit", QUOTED, upto(par_traverse(["cap", "hat"], quote, limit=1)), HARMLESS),
    edit("remove a limit", upto(par_traverse(["cap", "hat"], quote, limit=1)), QUOTED, HARMLESS),
]

BRANCHES = [
    edit(
        "add a branch that nothing recorded depends on",
        code(par(charge(5), pause.wait()), act("ship")),
        code(par(charge(5), pause.wait(), act("check")), act("ship")),
        Accepted(["check"]),
    ),
    edit(
        "remove a branch of which nothing is recorded",
        code(par(charge(5), pause.wait(), pure(1)), act("ship")),
        code(par(charge(5), pause.wait()), act("ship")),
        HARMLESS,
    ),
    edit(
        "remove a branch with a completed step",
        code(par(pause.wait(), charge(5)), act("ship")),
        code(par(pause.wait()), act("ship")),
        Refused("par[1]", "pause"),
    ),
    edit(
        "swap two branches",
        upto(par(act("reserve"), charge(5))),
        upto(par(charge(5), act("reserve"))),
        Refused("reserve", "charge"),
    ),
    edit(
        "insert a step into a branch",
        upto(par(charge(5), act("reserve"))),
        upto(par(in_order(act("check"), charge(5)), act("reserve"))),
        Refused("charge", "check"),
    ),
    edit(
        "replace par by par_all",
        upto(par(charge(5), act("reserve"))),
        upto(par_all([charge(5), act("reserve")])),
        Refused("par[", "par_all["),
    ),
    edit(
        "swap the winner of a race with a loser",
        upto(race([act("quick"), act("slow", 60)])),
        upto(race([act("slow", 60), act("quick")])),
        Refused("quick", "slow"),
    ),
]

WAITS = [
    edit(
        "swap the wait that won a race with a loser",
        upto(race([sleep(0.01).map(lambda _: "late"), act("slow", 60)]), charge(5)),
        upto(race([act("slow", 60), sleep(0.01).map(lambda _: "late")]), charge(5)),
        Refused("race[0]/sleep", "race[0]/slow"),
    ),
    edit("remove a sleep", SLEPT, CHARGED, Refused("sleep", "charge")),
    edit(
        "replace a sleep by a step", SLEPT, upto(act("check"), charge(5)), Refused("sleep", "check")
    ),
    edit("replace a step by a sleep", TWO, upto(sleep(1), charge(5)), Refused("reserve", "sleep")),
    edit("insert a sleep", CHARGED, SLEPT, Refused("charge", "sleep")),
    edit("change the seconds of a sleep", SLEPT, upto(sleep(0.002), charge(5)), HARMLESS),
    edit(
        "change the seconds of a timeout",
        upto(charge(5).timeout(60)),
        upto(charge(5).timeout(90)),
        HARMLESS,
    ),
    Edit(
        "wait for another signal",
        CHARGED,
        code(charge(5), other.wait(), act("ship")),
        crashed=HARMLESS,
        suspended=Refused("pause", "other"),
    ),
    Edit(
        "wait for another signal first",
        CHARGED,
        upto(charge(5), other.wait()),
        crashed=HARMLESS,
        suspended=Refused("pause", "other"),
    ),
    Edit(
        "replace the wait for a signal by a step",
        CHARGED,
        code(charge(5), act("ship")),
        crashed=HARMLESS,
        suspended=Refused("pause", "ship"),
    ),
    edit(
        "give the wait for a signal a timeout",
        CHARGED,
        code(charge(5), pause.wait().timeout(60).result().map(lambda _: "go"), act("ship")),
        HARMLESS,
    ),
]

VALUES = [
    edit(
        "add now()",
        CHARGED,
        upto(now().map(lambda _: 1), charge(5), now().map(lambda _: 1)),
        HARMLESS,
    ),
    edit("remove now() and random()", upto(now(), random(), charge(5)), CHARGED, HARMLESS),
    edit(
        "add pure code, logging and a look at the environment",
        CHARGED,
        upto(pure(1), logs("here")(None), asks(is_app), charge(5)),
        HARMLESS,
    ),
    edit(
        "add publish before a completed step",
        CHARGED,
        upto(publish("progress", 1), charge(5)),
        Refused("charge", "publish"),
    ),
    Edit(
        "add publish after the last completed step",
        CHARGED,
        upto(charge(5), publish("progress", 1)),
        crashed=HARMLESS,
        suspended=Refused("pause", "publish"),
    ),
    edit(
        "change a value that was published",
        upto(publish("progress", 1), charge(5)),
        upto(publish("progress", 2), charge(5)),
        HARMLESS,
    ),
]

CALLS = [
    edit(
        "replace a call by the body that it called",
        upto(called()),
        CHARGED,
        Refused("inner", "charge"),
    ),
    edit("call what was a part of the body", CHARGED, upto(called()), Refused("charge", "inner")),
    edit(
        "call another workflow",
        upto(called()),
        upto(called("renamed")),
        Refused("inner", "renamed"),
    ),
    edit("call with another input", upto(called()), upto(called(amount=6)), Refused("5", "6")),
]

EDITS = [*STEPS, *WRAPS, *FINALIZERS, *ITEMS, *BRANCHES, *WAITS, *VALUES, *CALLS]


def with_verdict(kind: type[Verdict]) -> pytest.MarkDecorator:
    """Parametrize a test with all edits that have such a verdict, and how the first life ended."""
    return pytest.mark.parametrize(
        ("changed", "ending", "verdict"),
        [
            pytest.param(changed, ending, verdict, id=f"{changed.what}, {ending}")
            for changed in EDITS
            for ending in ("crashed", "suspended")
            if isinstance(verdict := getattr(changed, ending), kind)
        ],
    )


# Lives.


async def first_life(changed: Edit, ending: str) -> tuple[MemoryStore, World]:
    """Live once with the code before the edit. Return what is left of it, and what it did."""
    service = Service(MemoryStore(), World(failing=set(changed.failing)))
    async with working(service, changed.before) as worker:
        await worker.client.submit(changed.before, None, run_id="r")
        await suspended(service, "r")
    assert isinstance(service.store, MemoryStore)
    store = service.store
    if ending == "crashed":
        entries = await read_entries(store, "r")
        ends = [n for n, entry in enumerate(entries, 1) if isinstance(entry, Completed | Failed)]
        store = await cut(store, ends[-1])
    await send_all(store, changed.before)
    return store, service.world


async def send_all(store: MemoryStore, made: AnyWorkflow) -> None:
    """Send the run what it may wait for."""
    handle = Client(Checkpoints(store)).handle(made, "r")
    for signal in (pause, other):
        await handle.send(signal, "go")


async def resumed(made: AnyWorkflow, store: MemoryStore) -> tuple[Result[Any, Any], World]:
    """Resume the run with some code, at a time at which all its waits are over."""
    world = World()
    with anyio.fail_after(20):
        result = await TestClock().run(made.resume("r"), App(Checkpoints(store), world))
    return result, world


async def uninterrupted(made: AnyWorkflow) -> tuple[Any, World]:
    """Return what a run without interruptions yields and does."""
    store = MemoryStore()
    await Client(Checkpoints(store)).submit(made, None, run_id="r")
    await send_all(store, made)
    result, world = await resumed(made, store)
    return result.unwrap(), world


async def state_of(store: MemoryStore) -> object:
    """Return all that a resume must not change if it is refused."""
    info = await find_run(store, "r")
    assert info is not None
    return await store.read("r"), info.summary, info.lease


async def is_refused(made: AnyWorkflow, store: MemoryStore) -> str:
    """Return the message of a resume that is refused, after a check that it did nothing."""
    before = await state_of(store)
    result, world = await resumed(made, store)
    error = result.failure()
    assert isinstance(error, DefinitionChanged | StepInputChanged), error
    assert world.done == []
    assert await state_of(store) == before
    return str(error)


async def problem_of_plan(made: AnyWorkflow, store: MemoryStore) -> str:
    """Return why a plan says that a resume is refused, after a check that it did nothing."""
    before, world = await state_of(store), World()
    plan = await made.plan("r").run_or_raise(App(Checkpoints(store), world))
    assert isinstance(plan.problem, DefinitionChanged | StepInputChanged)
    assert world.done == []
    assert await state_of(store) == before
    return str(plan.problem)


async def continues_with(before: AnyWorkflow, store: MemoryStore, first: World) -> None:
    """Check that a run continues with the code that began it."""
    value, whole = await uninterrupted(before)
    result, world = await resumed(before, store)
    assert result == Success(value)
    left = Counter(whole.done)
    left.subtract(set(first.done))
    assert Counter(world.done) == +left


# Tests.


@with_verdict(Refused)
async def test_a_plan_and_a_resume_say_that_the_code_has_changed(
    changed: Edit, ending: str, verdict: Refused
) -> None:
    store, first = await first_life(changed, ending)

    planned = await problem_of_plan(changed.after, store)
    message = await is_refused(changed.after, store)

    assert verdict.recorded in planned
    assert verdict.recorded in message
    assert verdict.now in message
    await continues_with(changed.before, store, first)


@with_verdict(Accepted)
async def test_the_edit_is_harmless(changed: Edit, ending: str, verdict: Accepted) -> None:
    store, _ = await first_life(changed, ending)
    value, _ = await uninterrupted(changed.after)

    result, world = await resumed(changed.after, store)

    assert result == Success(value)
    assert world.done == [*verdict.new, "ship"]


PARALLEL = [wrap for wrap in WRAPS if isinstance(wrap.suspended, Refused)]


@both_backends
@pytest.mark.parametrize("changed", PARALLEL, ids=[wrap.what for wrap in PARALLEL])
async def test_a_worker_executes_nothing_of_a_run_whose_completed_step_was_wrapped(
    changed: Edit,
) -> None:
    store, first = await first_life(changed, "suspended")
    service = Service(store)

    async with working(service, changed.after):
        reason = await blocked(service)
    assert service.world.done == []
    assert isinstance(changed.suspended, Refused)
    assert changed.suspended.recorded in reason
    assert changed.suspended.now in reason
    await continues_with(changed.before, store, first)


async def blocked(service: Service) -> str:
    """Wait until a worker could not continue the run, and return the reason that others are shown."""
    with anyio.fail_after(10):
        while not (found := (await info_of(service, "r")).summary.details.blocked):
            await anyio.sleep(0.003)
    return found


@both_backends
async def test_a_run_of_changed_code_is_blocked_with_the_reason_and_other_runs_go_on() -> None:
    store, _ = await first_life(edit("", CHARGED, CHARGED, HARMLESS), "suspended")
    service = Service(store)
    before = await store.read("r")
    changed = upto(act("bill"))

    async with working(service, changed) as worker:
        reason = await blocked(service)
        new = await worker.client.submit(changed, None, run_id="new")
        await new.send(pause, "go")
        assert await new.result(timeout=10) == Success(["bill", "go", "ship"])

    assert "charge" in reason
    assert "bill" in reason
    assert await store.read("r") == before
    assert (await info_of(service, "r")).summary.status is RunStatus.BLOCKED
    assert service.world.done == ["bill", "ship"]
    async with working(service, CHARGED, clock=TestClock()) as worker:
        old = worker.client.handle(CHARGED, "r")
        assert await old.result(timeout=10) == Success(["5 paid", "go", "ship"])
    assert service.world.done == ["bill", "ship", "ship"]


# Children.


@workflow
def shop(item: str) -> Do[App, Broken, str]:
    return (yield from quote(item))


@workflow
def store_room(item: str) -> Do[App, Broken, str]:
    return (yield from quote(item))


def parent(
    items: Sequence[str] = ("cap", "hat"),
    results: Sequence[int] = (0, 1),
    of: AnyWorkflow = shop,
    ids: Sequence[str | None] = (None, None),
) -> AnyWorkflow:
    """Return a workflow that spawns runs, waits for their results in some order, and pauses."""

    @workflow(name="parent")
    def made(_: object) -> Do[App, Broken | RunConflict, list[str]]:
        children = []
        for item, run_id in zip(items, ids, strict=True):
            children.append((yield from spawn(of, item, run_id=run_id)))
        values: list[str] = []
        for number in results:
            values.append((yield from children[number].result()))
        yield from pause.wait()
        yield from act("ship")
        return values

    return made


CHILDREN = {
    "swap the results of two children": (parent(results=[1, 0]), "shop", "shop#2"),
    "wait for one child twice": (parent(results=[0, 0]), "shop#2", "shop"),
    "wait for fewer children": (parent(results=[0]), "shop", "pause"),
    "spawn with another input": (parent(["cap", "tie"]), "shop#2", "shop#2"),
    "spawn another workflow": (parent(of=store_room), "shop", "store_room"),
    "spawn with another id": (parent(ids=["mine", None]), "shop", "mine"),
}


@both_backends
@pytest.mark.parametrize(("after", "recorded", "now"), CHILDREN.values(), ids=CHILDREN)
async def test_a_parent_that_treats_its_children_in_another_way_has_changed(
    after: AnyWorkflow, recorded: str, now: str
) -> None:
    store, before = MemoryStore(), parent()
    service = Service(store)
    async with working(service, before, shop) as worker:
        await worker.client.submit(before, None, run_id="r")
        await suspended(service, "r", waits_for="signal pause")
    await Client(Checkpoints(store)).handle(before, "r").send(pause, "go")
    others = {info.run_id for info in await store.find()}

    message = await is_refused(after, store)

    assert recorded in message
    assert now in message
    assert {info.run_id for info in await store.find()} == others
    result, world = await resumed(before, store)
    assert result == Success(["price of cap", "price of hat"])
    assert world.done == ["ship"]


# Names.


async def test_two_functions_that_name_their_steps_alike_in_one_run_are_an_error() -> None:
    made = code(charge(5), charge_in_another_way(6))
    world = World()

    with pytest.raises(TypeError, match="'charge'"):
        await made.start(None, run_id="r").run(App(Checkpoints(MemoryStore()), world))

    assert world.done == ["charge 5"]
