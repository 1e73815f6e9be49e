"""A resume whose code comes to other steps than were recorded is refused, before its first new step.

`test_edits.py` shows which edits of the code are refused. These tests show where else, and how to go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never

import pytest
from returns.result import Failure, Success

from effectflow import (
    Do,
    Effect,
    bracket,
    do,
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
from effectflow.checkpoint import (
    DefinitionChanged,
    Resumed,
    StepInputChanged,
    find_run,
    read_entries,
)
from effectflow.effects import die, first_success, suspend
from effectflow.stores import MemoryStore
from effectflow.testing import CrashPoint, FaultyStore, before
from tests.apps import App, Crash, app_on, both_backends, note
from tests.runs.journals import (
    AnyEffect,
    AnyWorkflow,
    act,
    cut,
    hang,
    in_turn,
    journal,
    made_of,
    resume,
    start,
)

pytestmark = pytest.mark.anyio


def of_steps(*names: str, last: str = "last") -> AnyWorkflow:
    """Return a workflow of steps with these names, and a last one."""

    @workflow(name="made")
    def made(_: object) -> Do[App, Any, list[str]]:
        done: list[str] = []
        for name in (*names, last):
            done += [(yield from act(name))]
        return done

    return made


async def is_refused(made: AnyWorkflow, store: MemoryStore) -> str:
    """Return the message of a resume that is refused, after a check that it changed nothing."""
    before = await store.read("r"), await find_run(store, "r")
    app = app_on(store)
    error = (await resume(made, app)).failure()
    assert isinstance(error, DefinitionChanged), error
    assert app.world.done == []
    records, info = await store.read("r"), await find_run(store, "r")
    assert info is not None
    assert before[1] is not None
    assert (records, info.summary) == (before[0], before[1].summary)
    assert info.lease is None
    return str(error)


async def failed_at_last(made: AnyWorkflow, store: MemoryStore) -> None:
    """Run a workflow whose step `last` fails."""
    result = await start(made, app_on(store, failing=["last"]))
    assert isinstance(result, Failure)


def parallel(*items: str) -> AnyWorkflow:
    @workflow(name="made")
    def made(_: object) -> Do[App, Any, list[str]]:
        done = yield from par_traverse(items, act)
        return [*done, (yield from act("last"))]

    return made


async def test_the_arguments_of_a_step_that_was_begun_are_compared(store: MemoryStore) -> None:
    """Its next attempt has the same idempotency key."""

    @step(name="last")
    def pay(amount: int) -> Effect[App, Any, int]:
        return note("last").map(lambda _: amount)

    amount = 5

    made = made_of(lambda: pay(amount))

    await failed_at_last(made, store)
    amount = 6
    app = app_on(store)
    assert isinstance((await resume(made, app)).failure(), StepInputChanged)
    assert app.world.done == []


async def test_no_branch_continues_if_another_one_diverges(store: MemoryStore) -> None:
    def with_first(name: str) -> AnyWorkflow:
        a, b = in_turn(act("a1"), act("last")), in_turn(act(name), act("b2"))
        return made_of(lambda: par(a, b))

    await failed_at_last(with_first("b1"), store)
    message = await is_refused(with_first("other"), store)
    assert "'par[1]/b1'" in message
    assert "'par[1]/other'" in message


DECIDING: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "winner of a race": lambda branch: race([branch, sleep(60)]),
    "first success": lambda branch: first_success([sleep(60), branch]),
    "winner that is parallel itself": lambda branch: race([par(branch, sleep(1)), sleep(60)]),
    "first failure": lambda branch: par(in_turn(branch, fail("closed")), sleep(60)).result(),
    "first failure of items": lambda branch: par_traverse(
        [1, 60], lambda n: in_turn(branch, fail("closed")) if n == 1 else sleep(n)
    ).result(),
}


@both_backends
@pytest.mark.parametrize("after", [act("bill"), pure(None)], ids=["renamed", "ends early"])
@pytest.mark.parametrize("around", DECIDING.values(), ids=DECIDING.keys())
async def test_steps_of_the_branch_that_led_to_a_decision_are_compared(
    store: MemoryStore, around: Callable[[AnyEffect], AnyEffect], after: AnyEffect
) -> None:
    branch = act("charge")
    made = made_of(lambda: in_turn(around(branch).map(lambda _: None), act("last")))
    await failed_at_last(made, store)
    branch = after
    assert "/charge'" in await is_refused(made, store)
    plan = (await made.plan("r").run(app_on(store))).unwrap()
    assert isinstance(plan.problem, DefinitionChanged)


@both_backends
@pytest.mark.parametrize(
    "after",
    [act("new").and_then(lambda _: sleep(60)), pure(None)],
    ids=["inserted", "ends early"],
)
async def test_steps_of_a_branch_that_was_cancelled_are_compared(
    store: MemoryStore, after: AnyEffect
) -> None:
    """Otherwise, its resource would never be released."""
    loser: AnyEffect = bracket(act("rent"), lambda _: act("return"), lambda _: sleep(60))
    made = made_of(lambda: in_turn(loser.timeout(0.01).result().map(lambda _: None), act("last")))
    faulty = FaultyStore(store, [CrashPoint(before("return"), is_durable=True)])
    with faulty.life():
        await start(made, app_on(faulty))
    unchanged, loser = loser, after
    assert "'rent'" in await is_refused(made, store)
    loser = unchanged
    app = app_on(store)
    await resume(made, app)
    assert app.world.done == ["return", "last"]


async def test_force_continues_without_the_recorded_steps(store: MemoryStore) -> None:
    await failed_at_last(of_steps("reserve", "charge"), store)
    app = app_on(store, failing=["last"])
    changed = of_steps("reserve", "bill")
    assert isinstance(await resume(changed, app, force=True), Failure)
    assert app.world.done == ["bill", "last"]
    entries = await read_entries(store, "r")
    assert any(isinstance(entry, Resumed) and entry.abandoned for entry in entries)
    # Later resumes need no force, and later changes are refused again.
    app = app_on(store, failing=["last"])
    assert isinstance(await resume(changed, app), Failure)
    assert app.world.done == ["last"]
    await is_refused(of_steps("reserve", "invoice"), store)
    assert await resume(changed, app_on(store)) == Success(["reserve", "bill", "last"])


@pytest.mark.parametrize(
    ("changed", "executed"),
    [
        (("reserve", "weigh", "charge"), ["weigh", "last"]),
        (("weigh", "reserve", "charge"), ["weigh", "last"]),
        (("charge", "reserve"), ["last"]),
        (("charge", "weigh", "reserve", "charge"), ["weigh", "charge", "last"]),
    ],
    ids=["inserted", "inserted first", "swapped", "repeated"],
)
async def test_force_executes_no_completed_step_again(
    store: MemoryStore, changed: tuple[str, ...], executed: list[str]
) -> None:
    await failed_at_last(of_steps("reserve", "charge"), store)
    app = app_on(store, failing=["last"])
    assert isinstance(await resume(of_steps(*changed), app, force=True), Failure)
    assert app.world.done == executed
    # The next life sees the same.
    app = app_on(store)
    assert await resume(of_steps(*changed), app) == Success([*changed, "last"])
    assert app.world.done == ["last"]


@pytest.mark.parametrize("at_most_once", [False, True])
async def test_force_executes_a_step_again_that_is_reached_later_with_other_arguments(
    store: MemoryStore, *, at_most_once: bool
) -> None:
    amount, is_changed = 5, False

    @step(at_most_once=at_most_once)
    def charge(amount: int) -> AnyEffect:
        return note(f"charge {amount}")

    def body() -> AnyEffect:
        first = [act("weigh")] if is_changed else []
        return in_turn(*first, charge(amount), act("last"))

    await failed_at_last(made_of(body), store)
    amount, is_changed = 6, True
    app = app_on(store)
    ended = await resume(made_of(body), app, force=True)
    if at_most_once:
        assert isinstance(ended.failure(), StepInputChanged)
        assert app.world.done == ["weigh"]
    else:
        assert ended == Success("last")
        assert app.world.done == ["weigh", "charge 6", "last"]


async def test_force_continues_after_a_flow_that_ends_early(store: MemoryStore) -> None:
    shorter = made_of(lambda: act("reserve"))

    await failed_at_last(of_steps("reserve", "charge"), store)
    assert await resume(shorter, app_on(store), force=True) == Success("reserve")


async def test_force_continues_with_fewer_items(store: MemoryStore) -> None:
    await failed_at_last(parallel("a", "b"), store)
    app = app_on(store, failing=["last"])
    await resume(parallel("a"), app, force=True)
    assert app.world.done == ["last"]
    app = app_on(store)
    assert await resume(parallel("a"), app) == Success(["a", "last"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (lambda: hang("slow").timeout(0.05).result(), lambda: act("slow")),
        (lambda: race(hang("slow"), act("quick")), lambda: race(act("slow"))),
    ],
    ids=["timeout", "race"],
)
async def test_force_executes_a_step_that_nothing_cancels_any_more(
    old: Callable[[], AnyEffect], new: Callable[[], AnyEffect], store: MemoryStore
) -> None:
    await start(made_of(lambda: in_turn(old(), act("last"))), app_on(store, failing=["last"]))
    changed, app = made_of(lambda: in_turn(new(), act("last"))), app_on(store)
    assert isinstance((await resume(changed, app_on(store))).failure(), DefinitionChanged)
    assert await resume(changed, app, force=True) == Success("last")
    assert app.world.done == ["slow", "last"]


async def test_a_defect_is_reported_as_itself(store: MemoryStore) -> None:
    is_broken = False

    @workflow
    def made(_: object) -> Do[App, Any, str]:
        yield from act("charge")
        if is_broken:
            raise Crash("not here")
        return (yield from act("last"))

    await failed_at_last(made, store)
    is_broken = True
    with pytest.raises(Crash, match="not here"):
        await resume(made, app_on(store))
    is_broken = False
    assert await resume(made, app_on(store)) == Success("last")


async def test_steps_in_a_step_that_did_not_complete_are_compared(store: MemoryStore) -> None:
    def of_inner(*names: str) -> AnyWorkflow:
        inside = in_turn(*map(act, names), act("last"))
        return made_of(lambda: with_checkpointing("outer", inside))

    await failed_at_last(of_inner("a", "b"), store)
    message = await is_refused(of_inner("c", "a"), store)
    assert "'outer/a'" in message
    assert "'outer/c'" in message


async def test_closures_of_one_function_are_one_step(store: MemoryStore) -> None:
    def charging(name: str) -> Any:
        @step
        def charge() -> Effect[App, Any, int]:
            return note(name)

        return charge

    made = made_of(lambda: in_turn(charging("a")(), charging("b")()))

    app = app_on(store)
    assert await start(made, app) == Success(1)
    assert app.world.done == ["a", "b"]


async def test_steps_in_the_use_of_a_resource_are_compared(store: MemoryStore) -> None:
    def using(name: str) -> AnyWorkflow:
        held = bracket(act("open"), lambda _: act("close"), lambda _: act(name))
        return made_of(lambda: in_turn(held, act("last")))

    await failed_at_last(using("use"), store)
    assert "'use'" in await is_refused(using("misuse"), store)
    assert (await journal(store))[-1] == "failed again: F last"


@step
def crashes() -> Effect[object, Never, None]:
    """Raise an exception that it does not declare."""
    return suspend(lambda: die(Crash("crashes")))


async def test_a_handler_of_an_undeclared_exception_is_told_to_declare_it(
    store: MemoryStore,
) -> None:
    @do
    def body() -> Do[App, Any, object]:
        try:
            return (yield from crashes())
        except Crash:
            return (yield from act("handle it"))
        except Exception:
            return (yield from act("handle others"))

    made = made_of(body)
    await start(made, app_on(store))
    begun = (await journal(store)).index("B handle it") + 1
    refused = (await resume(made, app_on(await cut(store, begun)))).failure()
    assert isinstance(refused, DefinitionChanged)
    assert "Step 'crashes' raised an exception that it does not declare" in str(refused)
