"""`Workflow.plan` tells what a resume will do, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Never

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import (
    Do,
    RetryPolicy,
    ask,
    bracket,
    compensate,
    do,
    fail,
    now,
    par,
    par_all,
    pure,
    race,
    saga,
    sleep,
    uuid,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import (
    DefinitionChanged,
    OutcomeUnknown,
    ResumePlan,
    RunNotFound,
    StepInputChanged,
    find_run,
    step,
)
from effectflow.effects import from_async, from_fn, never
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, Crash, app_on, note
from tests.runs.journals import (
    AnyEffect,
    AnyWorkflow,
    act,
    clock_at,
    cut,
    hang,
    in_turn,
    journal,
    late,
    made_of,
    next_life,
    resume,
    start,
    stopped,
)

pytestmark = pytest.mark.anyio


async def plan_of(
    made: AnyWorkflow, store: Any, *, at: float = 0, effects: bool = False
) -> ResumePlan:
    """Return the plan of the run "r", after a check that it changed nothing."""
    app = app_on(store)
    before = await store.read("r"), await find_run(store, "r")
    plan = await made.plan("r", effects=effects).run(app, clock=clock_at(at))
    assert (await store.read("r"), await find_run(store, "r")) == before
    if not effects:
        assert app.world.done == []
    return plan.unwrap()


@workflow
def checkout(_: object) -> Do[App, Any, object]:
    charged = yield from act("charge").result()
    if isinstance(charged, Failure):
        return (yield from act("apologize"))
    return (yield from act("ship"))


async def test_a_plan_names_the_next_step_of_a_body(store: MemoryStore) -> None:
    await start(checkout, app_on(store))
    after_charge = await cut(store, 3)
    assert await plan_of(checkout, after_charge) == ResumePlan(start=("ship",), skip=("charge",))


async def test_a_step_that_was_cut_off_is_retried(store: MemoryStore) -> None:
    await start(checkout, app_on(store))
    assert await plan_of(checkout, await cut(store, 2)) == ResumePlan(
        start=("charge",), retry=("charge",)
    )


async def test_after_a_failure_a_plan_starts_with_its_handler(store: MemoryStore) -> None:
    """A crash does not try a recorded failure again."""
    await start(checkout, app_on(store, failing=["charge"]))
    assert await plan_of(checkout, await cut(store, 3)) == ResumePlan(start=("apologize",))
    plan = await plan_of(checkout, await cut(store, 4))
    assert (plan.start, plan.retry) == (("apologize",), ("apologize",))


async def test_every_flow_of_a_parallel_operator_has_its_next_step(store: MemoryStore) -> None:
    made = made_of(lambda: par(in_turn(act("a1"), late("a2", 1)), in_turn(act("b1"), hang("b2"))))
    await start(made, app_on(store, failing=["a2"]))
    plan = await plan_of(made, store)
    assert plan.start == plan.retry == ("par[0]/a2", "par[1]/b2")
    assert plan.skip == ("par[0]/a1", "par[1]/b1")


async def test_a_step_that_contains_steps_hides_no_step_of_another_flow(store: MemoryStore) -> None:
    outer = with_checkpointing("outer", par(in_turn(act("a1"), hang("a2")), hang("b")))
    made = made_of(lambda: par(outer, in_turn(act("c1"), hang("c2"))))

    await stopped(made.start(None, run_id="r"), app_on(store))
    plan = await plan_of(made, store)
    assert sorted(plan.start) == sorted(plan.retry) == ["par[0]/outer", "par[1]/c2"]
    assert sorted(plan.skip) == ["par[0]/outer/par[0]/a1", "par[1]/c1"]


async def test_a_failure_that_a_branch_has_handled_is_not_retried_with_that_of_another(
    store: MemoryStore,
) -> None:
    made = made_of(lambda: par(act("a").result(), late("b", 1)))

    await start(made, app_on(store, failing=["a", "b"]))
    plan = await plan_of(made, store)
    assert (plan.start, plan.retry) == (("par[1]/b",), ("par[1]/b",))
    app = app_on(store)
    await resume(made, app)
    assert app.world.done == ["b"]


async def test_an_unknown_outcome_is_the_problem(store: MemoryStore) -> None:
    made = made_of(lambda: with_checkpointing("pay", note("pay"), at_most_once=True))

    await start(made, app_on(store))
    shorter = await cut(store, 2)
    plan = await plan_of(made, shorter)
    assert isinstance(plan.problem, OutcomeUnknown)
    assert plan.start == ()
    refused = (await resume(made, app_on(shorter))).failure()
    assert str(refused) == str(plan.problem)


@step(retryable=False)
def charge_once() -> AnyEffect:
    return note("charge").map_err(str)


@do
def raises_another() -> Do[App, Broken, None]:
    try:
        yield from act("charge")
    except Broken as failed:
        yield from act("release")
        raise Broken("order") from failed


@do
def swallowed() -> Do[App, Never, None]:
    with suppress(Broken):
        yield from act("charge")
    yield from act("release")


def retried(effect: AnyEffect) -> AnyEffect:
    return effect.retry(RetryPolicy.exponential(0.001).with_max_retries(0))


def told() -> AnyEffect:
    """Return an effect that is not a step."""
    return from_fn(lambda _: None)


@pytest.mark.parametrize(
    ("effect", "standing"),
    [
        (act("charge").tap_err(lambda _: act("release")), "charge"),
        (act("charge").on_exit(act("release")), "charge"),
        (bracket(act("reserve"), lambda _: act("release"), lambda _: act("charge")), "charge"),
        (
            act("charge").or_else(lambda error: act("release").and_then(lambda _: fail(error))),
            "charge",
        ),
        (par(act("a"), act("charge").tap_err(lambda _: act("release"))), "par[1]/charge"),
        (charge_once(), "charge_once"),
        (charge_once().context("ordering"), "charge_once"),
        (raises_another(), "charge"),
        (retried(charge_once()), "charge_once"),
    ],
)
async def test_a_failure_that_passed_another_step_stands(
    store: MemoryStore, effect: AnyEffect, standing: str
) -> None:
    """What that step undid, a retry would take for done."""
    made = made_of(lambda: effect)
    ended = await start(made, app_on(store, failing=["charge"]))
    for _ in range(2):
        assert (await plan_of(made, store)).recurs == (standing,)
        app = app_on(store)
        assert str(await resume(made, app)) == str(ended)
        assert "charge" not in app.world.done


@pytest.mark.parametrize(
    "effect",
    [
        charge_once().map_err(lambda error: f"not {error}"),
        par_all([charge_once()]).map_err(len),
        charge_once().or_else(lambda _: act("release").and_then(lambda _: fail(1))),
        charge_once().recover(str, lambda _: fail("lost")),
    ],
)
async def test_a_plan_cannot_tell_which_step_a_mapped_failure_is_of(
    store: MemoryStore, effect: AnyEffect
) -> None:
    made = made_of(lambda: effect)
    ended = await start(made, app_on(store, failing=["charge"]))
    plan = await plan_of(made, store)
    assert (plan.start, plan.recurs) == ((), ())
    assert str(await resume(made, app_on(store))) == str(ended)


@pytest.mark.parametrize(
    "effect",
    [
        act("charge"),
        act("charge").tap_err(lambda _: told()),
        act("charge").on_exit(told()),
        bracket(told(), lambda _: told(), lambda _: act("charge")),
        act("charge").or_else(lambda _: act("charge")),
        par_all([act("charge"), act("beside")]).map(lambda found: found[0]),
        with_checkpointing("crash", note("crash")).on_exit(told()),
    ],
)
async def test_a_failure_that_passed_no_step_is_retried(
    store: MemoryStore, effect: AnyEffect
) -> None:
    made, app = made_of(lambda: effect), app_on(store, failing=["charge"])
    app.world.crashing.add("crash")
    with suppress(Crash):
        assert isinstance(await start(made, app), Failure)
    assert (await plan_of(made, store)).recurs == ()
    assert isinstance(await resume(made, app_on(store)), Success)
    assert (await plan_of(made, store)).is_complete


@pytest.mark.parametrize(
    "handled",
    [
        charge_once().result(),
        charge_once().fallback("closed"),
        charge_once().or_else(lambda _: act("release")),
        swallowed(),
    ],
)
async def test_a_failure_that_the_workflow_handles_does_not_recur(
    store: MemoryStore, handled: AnyEffect
) -> None:
    """What ends the run is between its steps, and may be different when it is resumed."""

    def check(app: App) -> AnyEffect:
        return fail("closed") if app.world.failing else pure("open")

    made = made_of(lambda: in_turn(handled, ask(App).and_then(check)))
    broken = app_on(store, failing=["charge"])
    assert (await start(made, broken)).failure() == "closed"
    plan = (await made.plan("r").run(broken)).unwrap()
    assert (plan.start, plan.recurs) == ((), ())
    assert (await resume(made, app_on(store))).unwrap() == "open"


async def test_a_defect_that_passed_another_step_recurs(store: MemoryStore) -> None:
    made, app = made_of(lambda: act("crash").on_exit(act("release"))), app_on(store)
    app.world.crashing.add("crash")
    with pytest.raises(Crash):
        await start(made, app)
    plan = await plan_of(made, store)
    assert (plan.start, plan.recurs) == ((), ("crash",))
    again = app_on(store)
    with pytest.raises(Exception, match="Crash"):
        await resume(made, again)
    assert again.world.done == []


async def test_a_defect_between_steps_is_raised_as_itself(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, object]:
        yield from act("charge")
        raise Crash("no such order")

    with pytest.raises(Crash, match="no such order"):
        await start(made, app_on(store))
    with pytest.raises(Crash, match="no such order"):
        await made.plan("r").run(app_on(store))


async def test_changed_code_is_the_problem(store: MemoryStore) -> None:
    changed = made_of(lambda: act("authorize"), "checkout")

    await start(checkout, app_on(store))
    plan = await plan_of(changed, await cut(store, 3))
    assert isinstance(plan.problem, DefinitionChanged)
    assert "'charge'" in str(plan.problem)
    assert "'authorize'" in str(plan.problem)
    assert plan.start == ()


async def test_changed_arguments_are_the_problem(store: MemoryStore) -> None:
    @step
    def pay(amount: int) -> AnyEffect:
        return note(f"pay {amount}")

    amount = 5
    made = made_of(lambda: pay(amount))
    await start(made, app_on(store))
    amount = 6
    assert isinstance((await plan_of(made, await cut(store, 2))).problem, StepInputChanged)


async def test_an_attempt_that_has_begun_is_not_waited_for_again_if_the_clock_was_set_back(
    store: MemoryStore,
) -> None:
    made = made_of(lambda: act("ask").retry(RetryPolicy.constant(60).with_max_retries(1)))
    await start(made, app_on(store, failing=["ask"]))
    shorter = await cut(store, (await journal(store)).index("B ask#2") + 1)

    plan = await plan_of(made, shorter, at=10)
    assert (plan.start, plan.waiting) == (("ask#2",), ())
    app = app_on(shorter)
    await stopped(made.resume("r"), app, at=10, seconds=1)
    assert app.world.done == ["ask"]


async def test_a_wait_that_is_not_over_is_waiting(store: MemoryStore) -> None:
    made = made_of(lambda: in_turn(act("ask"), sleep(60), act("remind")))
    await start(made, app_on(store))
    assert (await plan_of(made, await cut(store, 3))).waiting == ("sleep",)
    begun = await cut(store, 4)
    assert (await journal(begun))[-1] == "W sleep"
    plan = await plan_of(made, begun, at=10)
    assert (plan.start, plan.waiting) == ((), ("sleep",))
    plan = await plan_of(made, begun, at=61)
    assert (plan.start, plan.waiting) == (("remind",), ())


async def test_the_delay_of_a_retried_step_is_a_wait(store: MemoryStore) -> None:
    @step(retry=RetryPolicy.constant(60).with_max_retries(1))
    def pay() -> AnyEffect:
        return note("pay")

    made = made_of(lambda: pay())

    await start(made, app_on(store, failing=["pay#1"]))
    shorter = await cut(store, 3)
    assert (await journal(shorter))[-1] == "F pay"
    assert (await plan_of(made, shorter, at=10)).waiting == ("pay",)
    plan = await plan_of(made, shorter, at=61)
    assert (plan.start, plan.retry) == (("pay",), ("pay",))


async def test_effects_between_steps_leave_recorded_steps_unverified(store: MemoryStore) -> None:
    looked: list[str] = []

    async def look(app: App) -> str:
        looked.append("look")
        return "ship"

    @workflow
    def made(_: object) -> Do[App, Any, object]:
        yield from act("charge")
        name = yield from from_async(look)
        yield from act(name)
        return (yield from act("thank"))

    await start(made, app_on(store))
    shorter = await cut(store, 5)
    looked.clear()
    plan = await plan_of(made, shorter)
    assert looked == []
    assert [one.step for one in plan.unverified] == ["ship"]
    assert "look" in plan.unverified[0].reason
    assert (plan.start, plan.skip) == ((), ("charge",))
    plan = await plan_of(made, shorter, effects=True)
    assert looked == ["look"]
    assert (plan.start, plan.skip, plan.unverified) == (("thank",), ("charge", "ship"), ())


async def test_effects_before_an_operator_leave_what_it_contains_unverified(
    store: MemoryStore,
) -> None:
    called = made_of(lambda: act("charge"), "called")
    made = made_of(
        lambda: in_turn(
            from_async(lambda _: anyio.sleep(0)),
            par(act("reserve"), called.call(None).timeout(60)),
            bracket(act("open"), lambda _: act("close"), lambda _: act("use")),
        )
    )
    await start(made, app_on(store, failing=["use"]))
    plan = await plan_of(made, store)
    steps = [one.step for one in plan.unverified]
    assert steps == ["par[0]/reserve", "par[1]/called", "open", "use", "close"]
    assert (plan.start, plan.skip) == ((), ())


async def test_a_plan_runs_plain_functions_and_computes_new_decisions(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, object]:
        yield from act("charge")
        number = yield from from_fn(lambda _: 7)
        yield from now()
        yield from uuid()
        return (yield from act(f"ship-{number}"))

    await start(made, app_on(store))
    assert (await plan_of(made, await cut(store, 3))).start == ("ship-7",)


async def test_a_plan_acquires_and_releases_nothing(store: MemoryStore) -> None:
    used: list[str] = []

    def open_file(_: App) -> str:
        used.append("open")
        return "file"

    @workflow
    def made(_: object) -> Do[App, Any, object]:
        closing = from_fn(lambda _: used.append("close"))
        return (yield from bracket(from_fn(open_file), lambda _: closing, lambda _: act("use")))

    await start(made, app_on(store))
    used.clear()
    plan = await plan_of(made, await cut(store, 3))
    assert used == []
    assert [one.step for one in plan.unverified] == ["use"]


async def close(app: App) -> None:
    app.world.note("close")


RELEASES: dict[str, Callable[[], AnyEffect]] = {
    "bracket": lambda: bracket(
        act("open"), lambda _: in_turn(from_async(close), act("report")), lambda _: act("use")
    ),
    "on_exit": lambda: act("use").on_exit(in_turn(from_async(close), act("report"))),
    "saga": lambda: saga(
        in_turn(
            compensate(act("use"), lambda _: in_turn(from_async(close), act("report"))), fail(1)
        )
    ).result(),
}


@pytest.mark.parametrize("name", RELEASES)
async def test_a_plan_stops_at_a_finalizer_that_leads_to_a_step_by_an_effect(
    store: MemoryStore, name: str
) -> None:
    made = made_of(lambda: in_turn(RELEASES[name](), act("after")))
    await start(made, app_on(store, failing=["report#1"]))
    plan = await plan_of(made, store)
    assert (plan.start, plan.recurs) == ((), ())
    assert [(one.step.rpartition("/")[2], one.reason) for one in plan.unverified] == [
        ("report", plan.reason)
    ]
    assert "close" in plan.reason
    assert (await plan_of(made, store, effects=True)).start == (plan.unverified[0].step,)


async def test_a_plan_that_stops_before_all_recorded_steps_says_why(store: MemoryStore) -> None:
    made = made_of(lambda: in_turn(act("charge"), from_async(close), act("ship")))
    await start(made, app_on(store))
    plan = await plan_of(made, await cut(store, 3))
    assert (plan.start, plan.unverified) == ((), ())
    assert "close" in plan.reason


async def test_a_plan_of_a_race_names_every_runner_until_it_is_decided(store: MemoryStore) -> None:
    made = made_of(lambda: in_turn(race([hang("slow"), late("fast", 1)]), act("after")))
    await start(made, app_on(store))
    plan = await plan_of(made, await cut(store, 3))
    assert set(plan.start) == set(plan.retry) == {"race[0]/slow", "race[1]/fast"}
    decided = await cut(store, (await journal(store)).index("B after"))
    plan = await plan_of(made, decided)
    assert (plan.start, plan.skip) == (("after",), ("race[1]/fast",))


async def test_a_plan_that_stops_in_a_loser_names_the_steps_of_the_winner(
    store: MemoryStore,
) -> None:
    loser = bracket(act("open"), lambda _: act("close"), lambda _: hang("use"))
    made = made_of(lambda: race([loser, late("fast", 1)]))
    await start(made, app_on(store))
    lines = await journal(store)
    closing = lines.index("B race[0]/close")
    plan = await plan_of(made, await cut(store, closing + 1))
    assert plan.start == plan.retry == ("race[0]/close",)
    assert set(plan.skip) == {"race[0]/open", "race[1]/fast"}


async def test_a_plan_names_another_workflow_inside_the_run_as_a_step(store: MemoryStore) -> None:
    inner = made_of(lambda: act("inside"), "inner")
    made = made_of(lambda: in_turn(inner.call(None), act("after")))

    await start(made, app_on(store))
    assert await plan_of(made, await cut(store, 1)) == ResumePlan(start=("inner",))
    assert await plan_of(made, await cut(store, 4)) == ResumePlan(
        start=("inner",), retry=("inner",), skip=("inner/inside",)
    )
    assert await plan_of(made, await cut(store, 5)) == ResumePlan(start=("after",), skip=("inner",))


@pytest.mark.parametrize("place", ["acquisition", "release"])
async def test_a_plan_passes_waits_that_recorded_steps_follow(
    store: MemoryStore, place: str
) -> None:
    name = "slow"
    steps = {"acquisition": lambda: act("a"), "release": lambda: act("b")}
    steps[place] = lambda: sleep(1).and_then(lambda _: act(name))
    held = made_of(
        lambda: in_turn(
            bracket(steps["acquisition"](), lambda _: steps["release"](), lambda _: act("use")),
            act("after"),
        )
    )
    await start(held, app_on(store, failing=["after"]))
    plan = await plan_of(held, store)
    assert (plan.start, plan.waiting) == (("after",), ())
    name = "renamed"
    assert isinstance((await plan_of(held, store)).problem, DefinitionChanged)


async def test_a_plan_has_the_unknown_outcome_of_a_step_within_a_step(store: MemoryStore) -> None:
    paying: AnyEffect = with_checkpointing(
        "pay", note("pay").and_then(lambda _: never()), at_most_once=True
    )
    inner = made_of(lambda: paying, "inner")
    made = made_of(lambda: in_turn(inner.call(None), act("after")))
    await stopped(made.start(None, run_id="r"), app_on(store))
    plan = await plan_of(made, store)
    assert isinstance(plan.problem, OutcomeUnknown)
    assert plan.start == ()


async def test_a_complete_run_has_nothing_to_start(store: MemoryStore) -> None:
    await start(checkout, app_on(store))
    plan = await plan_of(checkout, store)
    assert plan.is_complete
    assert (plan.start, plan.skip) == ((), ("charge", "ship"))


async def test_a_failure_between_steps_does_not_name_a_step(store: MemoryStore) -> None:
    made = made_of(lambda: in_turn(act("charge"), fail("closed")))

    await start(made, app_on(store))
    plan = await plan_of(made, store)
    assert (plan.start, plan.recurs, plan.problem) == ((), (), None)


async def test_a_plan_of_an_unknown_run_fails(store: MemoryStore) -> None:
    found = await checkout.plan("missing").run(app_on(store))
    assert isinstance(found.failure(), RunNotFound)


async def test_a_plan_is_right_for_the_life_after_next(store: MemoryStore) -> None:
    await start(checkout, app_on(store, failing=["ship"]))
    for _ in range(2):
        plan = await plan_of(checkout, store)
        assert (plan.start, plan.retry, plan.skip) == (("ship",), ("ship",), ("charge",))
        app = next_life(app_on(store), failing=("ship",))
        await resume(checkout, app)
        assert app.world.done == ["ship"]


async def test_a_plan_does_not_hold_a_lease(store: MemoryStore) -> None:
    """A run can be planned while another process drives it."""
    await start(checkout, app_on(store, failing=["ship"]))
    await store.claim("r", owner="another process", seconds=60)
    assert (await plan_of(checkout, store)).start == ("ship",)
