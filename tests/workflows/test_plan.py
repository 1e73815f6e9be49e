"""`Workflow.plan` tells what a resume will do, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from returns.result import Failure

from effectflow import (
    Checkpoints,
    Do,
    RetryPolicy,
    bracket,
    fail,
    from_async,
    from_fn,
    now,
    par,
    pure,
    race,
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
    step,
)
from effectflow.stores import MemoryStore
from tests.apps import App, Crash, app_on, note
from tests.workflows.journals import (
    AnyEffect,
    AnyWorkflow,
    act,
    clock_at,
    cut,
    hang,
    journal,
    late,
    next_life,
    resume,
    start,
)

pytestmark = pytest.mark.anyio


async def plan_of(
    made: AnyWorkflow, store: Any, *, at: float = 0, effects: bool = False
) -> ResumePlan:
    """Return the plan of the run "r", after a check that it changed nothing."""
    app = app_on(store)
    before = await store.read("r"), await store.info("r")
    plan = await made.plan("r", effects=effects).run(app, clock=clock_at(at))
    assert (await store.read("r"), await store.info("r")) == before
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


async def test_a_failure_that_nothing_settled_is_retried(store: MemoryStore) -> None:
    """It is not known yet that `apologize` will start: the charge may succeed."""
    await start(checkout, app_on(store, failing=["charge"]))
    assert await plan_of(checkout, await cut(store, 3)) == ResumePlan(
        start=("charge",), retry=("charge",)
    )


async def test_a_settled_failure_leads_to_what_handled_it(store: MemoryStore) -> None:
    await start(checkout, app_on(store, failing=["charge"]))
    plan = await plan_of(checkout, await cut(store, 4))
    assert (plan.start, plan.retry) == (("apologize",), ("apologize",))


async def test_every_flow_of_a_parallel_operator_has_its_next_step(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, object]:
        a: AnyEffect = act("a1").and_then(lambda _: late("a2", 1))
        b: AnyEffect = act("b1").and_then(lambda _: hang("b2"))
        return (yield from par(a, b))

    await start(made, app_on(store, failing=["a2"]))
    plan = await plan_of(made, store)
    assert plan.start == plan.retry == ("par[0]/a2", "par[1]/b2")
    assert plan.skip == ("par[0]/a1", "par[1]/b1")


async def test_parallel_failures_are_retried_together(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, object]:
        return (yield from par(act("a").result(), late("b", 1)))

    await start(made, app_on(store, failing=["a", "b"]))
    plan = await plan_of(made, store)
    assert (plan.start, plan.retry) == (("par[0]/a", "par[1]/b"), ("par[0]/a", "par[1]/b"))
    app = app_on(store)
    await resume(made, app)
    assert app.world.done == ["a", "b"]


async def test_an_unknown_outcome_is_the_problem(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, object]:
        return (yield from with_checkpointing("pay", note("pay"), at_most_once=True))

    await start(made, app_on(store))
    shorter = await cut(store, 2)
    plan = await plan_of(made, shorter)
    assert isinstance(plan.problem, OutcomeUnknown)
    assert plan.start == ()
    refused = (await resume(made, app_on(shorter))).failure()
    assert str(refused) == str(plan.problem)


async def test_a_failure_that_a_tap_settled_recurs(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, object]:
        return (yield from act("charge").tap_err(lambda _: act("report")))

    await start(made, app_on(store, failing=["charge"]))
    plan = await plan_of(made, store)
    assert (plan.start, plan.recurs) == ((), ("charge",))
    app = app_on(store)
    assert str(await resume(made, app)) == "<Failure: charge>"
    assert app.world.done == []


async def test_a_failure_that_must_not_be_retried_recurs(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, object]:
        charge = note("charge").map_err(str)
        return (yield from with_checkpointing("charge", charge, error=str, retryable=False))

    await start(made, app_on(store, failing=["charge"]))
    assert (await plan_of(made, store)).recurs == ("charge",)


async def test_the_recorded_defect_of_a_step_recurs(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, object]:
        return (yield from act("charge").on_exit(act("report")))

    app = App(Checkpoints(store))
    app.world.crashing.add("charge")
    with pytest.raises(Crash):
        await start(made, app)
    assert (await plan_of(made, store)).recurs == ("charge",)


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
    @workflow(name="checkout")
    def changed(_: object) -> Do[App, Any, object]:
        return (yield from act("authorize"))

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

    amounts = [5, 6]

    @workflow
    def made(_: object) -> Do[App, Any, object]:
        return (yield from pay(amounts[0]))

    await start(made, app_on(store))
    amounts.pop(0)
    plan = await plan_of(made, await cut(store, 2))
    assert isinstance(plan.problem, StepInputChanged)


async def test_a_wait_that_is_not_over_is_waiting(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, object]:
        yield from act("ask")
        yield from sleep(60)
        return (yield from act("remind"))

    await start(made, app_on(store))
    shorter = await cut(store, 4)
    assert (await journal(shorter))[-1] == "W sleep"
    plan = await plan_of(made, shorter, at=10)
    assert (plan.start, plan.waiting) == ((), ("sleep",))
    plan = await plan_of(made, shorter, at=61)
    assert (plan.start, plan.waiting) == (("remind",), ())


async def test_a_wait_that_did_not_begin_is_waiting(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, object]:
        yield from act("ask")
        yield from sleep(60)

    await start(made, app_on(store))
    assert (await plan_of(made, await cut(store, 3))).waiting == ("sleep",)


async def test_the_delay_of_a_retried_step_is_a_wait(store: MemoryStore) -> None:
    @step(retry=RetryPolicy.constant(60).with_max_retries(1))
    def pay() -> AnyEffect:
        return note("pay")

    @workflow
    def made(_: object) -> Do[App, Any, object]:
        return (yield from pay())

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


async def test_a_plan_of_a_race_follows_the_winner(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, object]:
        yield from race([hang("slow"), late("fast", 1)])
        return (yield from act("after"))

    await start(made, app_on(store))
    entries = await journal(store)
    plan = await plan_of(made, await cut(store, entries.index("B after")))
    assert (plan.start, plan.skip) == (("after",), ("race[1]/fast",))


async def test_a_plan_of_an_undecided_race_names_every_runner(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, object]:
        return (yield from race([hang("slow"), late("fast", 1)]))

    await start(made, app_on(store))
    plan = await plan_of(made, await cut(store, 3))
    assert set(plan.start) == {"race[0]/slow", "race[1]/fast"}
    assert set(plan.retry) == {"race[0]/slow", "race[1]/fast"}


async def test_a_plan_names_nested_runs_that_start_or_continue(store: MemoryStore) -> None:
    @workflow
    def inner(_: object) -> Do[App, Any, object]:
        return (yield from act("inside"))

    @workflow
    def made(_: object) -> Do[App, Any, object]:
        yield from inner.call(None)
        return (yield from act("after"))

    await start(made, app_on(store))
    assert await plan_of(made, await cut(store, 1)) == ResumePlan(start=("inner",))
    assert await plan_of(made, await cut(store, 2)) == ResumePlan(
        start=("inner",), retry=("inner",)
    )
    plan = await plan_of(made, await cut(store, 3))
    assert plan.start == ("after",)


async def test_a_complete_run_has_nothing_to_start(store: MemoryStore) -> None:
    await start(checkout, app_on(store))
    plan = await plan_of(checkout, store)
    assert plan.is_complete
    assert (plan.start, plan.skip) == ((), ("charge", "ship"))


async def test_a_failure_between_steps_names_no_step(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, object]:
        yield from act("charge")
        return (yield from fail("closed"))

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


async def test_pure_values_are_followed(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, object]:
        name = yield from pure("charge")
        return (yield from act(name))

    await start(made, app_on(store, failing=["charge"]))
    assert (await plan_of(made, store)).start == ("charge",)
