"""Durable runs of a machine, and their resumes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

import anyio
import pytest

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    RetryPolicy,
    current_step,
    fail,
    par_traverse,
    pure,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.builders.machine._machine import state_of
from effectflow.checkpoint import (
    BeforeStep,
    CheckpointStore,
    Completed,
    DefinitionChanged,
    Interrupted,
    OutcomeUnknown,
    ResumePlan,
    RunConflict,
    RunStatus,
    fold,
    plan_resume,
    read_checkpoint,
    read_entries,
)
from effectflow.effects import from_async
from effectflow.graphs import StateGraph
from effectflow.machines import (
    Abort,
    Moved,
    NoTransition,
    Outcome,
    Retry,
    StateMachine,
    Transition,
    TransitionExhausted,
    UndeclaredState,
    transition_info,
)
from effectflow.stores import MemoryStore
from effectflow.testing import CrashPoint, crash_everywhere
from tests.apps import both_backends
from tests.builders.machine.orders import App, Declined, Order, World, only, orders
from tests.builders.machine.timeline import Timeline
from tests.runs.journals import cut

pytestmark = pytest.mark.anyio


def app_on(store: CheckpointStore, **world: Any) -> App:
    return App(World(**world), Checkpoints(store))


async def test_a_run_yields_the_same_machine_as_stepping(store: MemoryStore) -> None:
    begun = orders.begin(machine_id="r")
    stepped = await orders.run_until_final(begun).run(App(World(busy=2)), clock=Timeline(tick=0))

    run = await orders.start(run_id="r").run(app_on(store, busy=2), clock=Timeline(tick=0))

    assert run == stepped
    assert run.unwrap().current is Order.SHIPPED


async def test_each_attempt_is_a_step_with_the_name_of_its_transition(store: MemoryStore) -> None:
    await orders.start(run_id="r").run(app_on(store, busy=1), clock=Timeline())

    checkpoint = await read_checkpoint(store, "r")
    assert [done.step for done in checkpoint.completed_steps] == ["charge", "charge#2", "ship"]
    first, second, third = (done.output for done in checkpoint.completed_steps)
    assert isinstance(first, dict)
    assert (first["outcome"], first["feedback"], first["delay"]) == ("retry", "busy 1", 1.0)
    assert isinstance(second, dict)
    assert (second["outcome"], second["state"]) == ("moved", {"$enum": ["Order", "PAID"]})
    begun = [entry for entry in await read_entries(store, "r") if isinstance(entry, BeforeStep)]
    assert [entry.shown for entry in begun] == [
        "(NEW)",
        "(NEW)",
        "(PAID)",
    ]
    assert isinstance(third, dict)


@both_backends
async def test_a_crash_at_any_entry_changes_nothing_about_a_machine() -> None:
    points = await crash_everywhere(
        orders, None, lambda store: app_on(store, busy=2, has_truck=False)
    )

    # Five appends: a step begins with the end of the one before it, and the last makes the end durable.
    assert points[-1] == CrashPoint(6, is_durable=True)


@dataclass(frozen=True)
class Job:
    """A state that carries data."""

    items: tuple[str, ...]
    round: int = 1


@step
def fetch(item: str) -> Effect[object, str, str]:
    return pure(item.upper())


def build(job: Job) -> Effect[object, str, Outcome[Job]]:
    """Concurrent steps, a retry in the second round, and an abort after the third."""

    def decide(items: list[str], retries: int) -> Outcome[Job]:
        if job.round == 2 and retries == 0:
            return Retry("once more")
        again = Job(tuple(items), job.round + 1)
        return Abort("enough", again) if job.round == 3 else Moved(again)

    fetched = par_traverse(job.items, fetch, key=str)
    return fetched.zip_with(transition_info(), lambda items, info: decide(items, info.retries))


rounds = StateMachine(
    "rounds",
    initial=Job(("a", "b")),
    transitions=[Transition("build", Job, Job, build, lambda job: job.round < 4, abort_to=Job)],
    final={Job(("A", "B"), 4)},
)


async def test_a_crash_at_any_entry_changes_nothing_about_the_steps_within_actions() -> None:
    points = await crash_everywhere(rounds, None, lambda store: app_on(store))

    assert len(points) > 15


def chaotic(seed: int) -> StateMachine[App, str, Any]:
    """A machine that moves, retries and aborts at random, seeded by the path of each attempt."""
    states = ("a", "b", "c")

    def act(state: str) -> Effect[object, str, Outcome[str]]:
        return pure(outcome(current_step().step))

    def outcome(path: str) -> Outcome[str]:
        chance = Random(f"{seed} {path}")
        target = chance.choice((*states, *states, "end"))
        return chance.choice((Moved(target), Moved(target), Retry("again"), Abort("lost", target)))

    return StateMachine(
        "chaotic",
        initial="a",
        transitions=[
            Transition(f"leave {state}", state, {*states, "end"}, act, abort_to={*states, "end"})
            for state in states
        ],
        final={"end"},
        retry=RetryPolicy.exponential(1).without_bound(),
    )


@pytest.mark.parametrize("seed", range(12))
async def test_a_crash_at_any_entry_changes_nothing_about_any_machine(seed: int) -> None:
    await crash_everywhere(chaotic(seed), None, lambda store: app_on(store))


async def test_a_resumed_run_has_the_same_history_and_attempts(store: MemoryStore) -> None:
    whole = await orders.start().run(
        app_on(MemoryStore(), busy=2, has_truck=False), clock=Timeline()
    )
    expected = whole.unwrap()

    app, clock = app_on(store, busy=2, has_truck=False), Timeline()
    app.world.done = Full("ship")
    with pytest.raises(BufferError):
        await orders.start(run_id="r").run(app, clock=clock)
    before = await read_entries(store, "r")
    app.world.done = []
    clock.at += timedelta(days=30)
    resumed = (await orders.resume("r").run(app, clock=clock)).unwrap()

    assert [entry._replace(at=clock.at) for entry in resumed.history] == [
        entry._replace(at=clock.at) for entry in expected.history
    ]
    assert resumed.metadata.total_attempts == expected.metadata.total_attempts
    # What was recorded before keeps its times.
    assert resumed.history[0] == expected.history[0]
    assert resumed.metadata.created_at == expected.metadata.created_at
    assert (await read_entries(store, "r"))[: len(before) - 1] == before[:-1]
    assert app.world.done == ["ship"]


class Full(list[str]):
    """A list that refuses one item with a defect."""

    def __init__(self, refused: str) -> None:
        super().__init__()
        self.refused = refused

    def append(self, done: str) -> None:
        if done == self.refused:
            raise BufferError(done)
        super().append(done)


async def test_a_complete_run_yields_its_machine_without_running_anything(
    store: MemoryStore,
) -> None:
    app = app_on(store, has_truck=False)
    machine = await orders.start(run_id="r").run(app)
    done = list(app.world.done)

    assert await orders.resume("r").run(app) == machine
    assert await orders.start(run_id="r").run(app) == machine
    assert app.world.done == done
    assert orders.from_binary(machine.unwrap().to_binary()) == machine.unwrap()


async def test_a_run_may_begin_in_another_state_or_with_a_machine(store: MemoryStore) -> None:
    app = app_on(store, busy=1)
    stepped = orders.begin()
    for _ in range(2):
        stepped = (await orders.step(stepped).run(app, clock=Timeline())).unwrap()

    paid = (await orders.start(Order.PAID, run_id="state").run(app)).unwrap()
    gone_on = (await orders.start(stepped, run_id="machine").run(app)).unwrap()

    assert (paid.initial, [entry.transition for entry in paid.history]) == (Order.PAID, ["ship"])
    assert gone_on.history[:-1] == tuple(stepped.history)
    assert gone_on.metadata.total_attempts == {"charge": 2, "ship": 1}
    assert (await read_checkpoint(store, "machine")).status is RunStatus.COMPLETED
    assert (await orders.start(stepped, run_id="machine").run(app)).unwrap() == gone_on
    conflict = await orders.start(run_id="machine").run(app)
    assert isinstance(conflict.failure(), RunConflict)
    with pytest.raises(ValueError, match="not a state of 'orders'"):
        orders.start("paid")  # type: ignore[arg-type]


async def test_a_run_continues_the_pending_retry_of_a_machine(store: MemoryStore) -> None:
    app, clock = app_on(store, busy=2), Timeline()
    once = (await orders.step(orders.begin()).run(app, clock=clock)).unwrap()

    ended = (await orders.start(once).run(app, clock=clock)).unwrap()

    assert [entry.attempt for entry in ended.history] == [3, 1]
    assert clock.slept == [pytest.approx(1.0, abs=0.01), pytest.approx(2.0, abs=0.01)]


async def test_a_resume_repeats_a_failed_attempt(store: MemoryStore) -> None:
    app = app_on(store, is_declined=True)
    failed = await orders.start(run_id="r").run(app)
    assert isinstance(failed.failure(), Declined)
    plan = (await orders.plan("r").run(app)).unwrap()
    assert (plan.start, plan.retry) == (("charge",), ("charge",))

    app.world.is_declined = False
    machine = (await orders.resume("r").run(app)).unwrap()

    assert machine.current is Order.SHIPPED
    assert machine.metadata.total_attempts == {"charge": 1, "ship": 1}


async def test_after_the_last_retry_a_resume_makes_one_more_attempt(store: MemoryStore) -> None:
    app, clock = app_on(store, busy=9), Timeline()

    exhausted = (await orders.start(run_id="r").run(app, clock=clock)).failure()
    assert isinstance(exhausted, TransitionExhausted)
    again = (await orders.resume("r").run(app, clock=clock)).failure()
    assert isinstance(again, TransitionExhausted)
    assert (exhausted.attempts, again.attempts) == (4, 4)
    app.world.busy = 3
    machine = (await orders.resume("r").run(app, clock=clock)).unwrap()

    assert [entry.attempt for entry in machine.history] == [4, 1]
    assert app.world.done.count("charge (busy 3)") == 3


async def test_a_run_with_an_undeclared_state_continues_once_the_code_is_fixed(
    store: MemoryStore,
) -> None:
    with pytest.raises(UndeclaredState, match="yielded Moved with state nowhere"):
        await only(lambda _: pure(Moved("nowhere"))).start(run_id="r").run(app_on(store))
    assert (await read_checkpoint(store, "r")).status is RunStatus.FAILED

    resumed = await only(lambda _: pure(Moved("end"))).resume("r").run(app_on(store))
    assert resumed.unwrap().current == "end"


async def test_a_run_without_a_transition_continues_once_the_guard_is_fixed(
    store: MemoryStore,
) -> None:
    def machine(is_open: bool) -> StateMachine[object, Any, str]:
        return StateMachine(
            "gate",
            initial="out",
            transitions=[
                Transition("come", "out", "at the gate"),
                Transition("enter", "at the gate", "in", guard=lambda _: is_open),
            ],
            final={"in"},
        )

    error = (await machine(False).start(run_id="r").run(app_on(store))).failure()
    assert isinstance(error, NoTransition)
    assert (error.state, error.refused) == ("at the gate", ("enter",))
    closed = (await machine(False).plan("r").run(app_on(store))).unwrap()
    opened = (await machine(True).plan("r").run(app_on(store))).unwrap()
    assert (closed.start, opened.start) == ((), ("enter",))

    assert (await machine(True).resume("r").run(app_on(store))).unwrap().current == "in"


class Stopping(Timeline):
    """A clock whose first sleep is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.scope: anyio.CancelScope | None = None

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        assert self.scope is not None
        self.scope.cancel()
        await anyio.sleep_forever()


@both_backends
async def test_a_run_interrupted_during_a_delay_waits_only_for_the_rest(store: MemoryStore) -> None:
    app, clock = app_on(store, busy=1), Stopping()
    with anyio.CancelScope() as clock.scope:
        await orders.start(run_id="r").run(app, clock=clock)

    checkpoint = await read_checkpoint(store, "r")
    assert isinstance(checkpoint.state, Interrupted)
    assert (checkpoint.state.step, checkpoint.state.in_progress) == ("charge", False)
    plan = (await orders.plan("r").run(app)).unwrap()
    assert (plan.start, plan.retry, plan.skip) == (("charge#2",), (), ("charge",))

    waiting = (await orders.plan("r").run(app, clock=Timeline(clock.at))).unwrap()
    assert (waiting.start, waiting.waiting) == ((), ("sleep",))

    later = Timeline(clock.at + timedelta(seconds=0.4))
    machine = (await orders.resume("r").run(app, clock=later)).unwrap()
    assert machine.metadata.total_attempts == {"charge": 2, "ship": 1}
    assert later.slept == [pytest.approx(0.6, abs=0.01)]


@both_backends
async def test_an_at_most_once_attempt_is_not_repeated_silently(store: MemoryStore) -> None:
    scope = anyio.CancelScope()

    async def pay(app: App) -> Outcome[str]:
        app.world.done.append("pay")
        if len(app.world.done) == 1:
            scope.cancel()
            await anyio.sleep_forever()
        return Moved("end")

    machine, app = only(lambda _: from_async(pay), at_most_once=True), app_on(store)
    with scope:
        await machine.start(run_id="r").run(app)

    assert isinstance((await machine.resume("r").run(app)).failure(), OutcomeUnknown)
    assert (await machine.resume("r", force=True).run(app)).unwrap().current == "end"


async def states_of(store: MemoryStore) -> list[Any]:
    """Return the state in the checkpoint after each entry."""
    entries = await read_entries(store, "r")
    return [state_of(fold(entries[:length], "r")) for length in range(1, len(entries) + 1)]


async def test_the_checkpoint_has_the_current_state(store: MemoryStore) -> None:
    await orders.start(run_id="r").run(app_on(store, busy=1), clock=Timeline())
    # Started; charge begun, completed; the delay begun, over; charge#2 begun, completed; ship begun,
    # completed; finished.
    names = [state["$enum"][1] for state in await states_of(store)]
    assert names == ["NEW"] * 6 + ["PAID"] * 2 + ["SHIPPED"] * 2


async def test_the_outputs_of_steps_within_an_action_are_not_states(store: MemoryStore) -> None:
    await rounds.start(run_id="r").run(app_on(store))
    numbers = [state["$object"][1]["round"] for state in await states_of(store)]
    assert numbers == sorted(numbers)


async def test_a_machine_given_as_input_keeps_its_current_state(store: MemoryStore) -> None:
    paid = (await orders.step(orders.begin()).run(App())).unwrap()
    await orders.start(paid, run_id="r").run(app_on(store))
    assert (await states_of(store))[0] == {"$enum": ["Order", "PAID"]}


@pytest.mark.parametrize("machine", [orders, rounds], ids=lambda machine: machine.name)
async def test_after_any_entry_a_plan_names_the_next_attempt(
    store: MemoryStore, machine: StateMachine[App, Any, Any]
) -> None:
    await machine.start(run_id="r").run(app_on(store, busy=1), clock=Timeline())
    entries = await read_entries(store, "r")

    starts: list[tuple[str, ...]] = []
    for length in range(1, len(entries) + 1):
        shorter = Checkpoints(await cut(store, length))
        starts.append((await machine.plan("r").run(App(checkpoints=shorter))).unwrap().start)

    for number, start in enumerate(starts):
        rest = entries[number if isinstance(entries[number], BeforeStep) else number + 1 :]
        attempts = [entry.step for entry in rest if isinstance(entry, BeforeStep)]
        under_way = {entry.step for entry in entries[: number + 1] if isinstance(entry, BeforeStep)}
        under_way -= {entry.step for entry in entries[: number + 1] if isinstance(entry, Completed)}
        if isinstance(entries[number], BeforeStep):
            assert start == (attempts[0].partition("/")[0],)
        elif under_way:
            # During an action: the attempt is repeated, and skips its completed steps.
            assert start in {(path,) for path in under_way if "/" not in path}
        else:
            assert start == tuple(path for path in attempts if "/" not in path)[:1]


async def test_a_plan_skips_a_failure_that_an_action_handled(store: MemoryStore) -> None:
    def pay(_: str) -> Effect[object, Any, Outcome[str]]:
        card: Effect[object, str, None] = with_checkpointing("card", fail("declined"))
        return card.result().map(lambda _: Moved("paid"))

    def ship(_: str) -> Effect[object, Any, Outcome[str]]:
        return pure(Retry("no truck"))

    machine = StateMachine(
        "recovering",
        initial="new",
        transitions=[
            Transition("pay", "new", "paid", pay),
            Transition("ship", "paid", "shipped", ship),
        ],
        final={"shipped"},
        retry=RetryPolicy.constant(0).with_max_retries(1),
    )
    await machine.start(run_id="r").run(app_on(store))
    kept = [isinstance(e, Completed) and e.step == "ship" for e in await read_entries(store, "r")]

    shorter = await cut(store, kept.index(True) + 1)
    plan = (await machine.plan("r").run(app_on(shorter))).unwrap()

    assert plan == ResumePlan(start=("ship#2",), skip=("pay", "ship"))


async def test_a_plan_skips_an_attempt_that_a_fixed_guard_bypassed(store: MemoryStore) -> None:
    def by_train(_: str) -> Effect[object, str, Outcome[str]]:
        return fail("a strike")

    def machine(*, trains_go: bool) -> StateMachine[object, Any, str]:
        return StateMachine(
            "journey",
            initial="home",
            transitions=[
                Transition("train", "home", "station", by_train, lambda _: trains_go),
                Transition("bus", "home", "station"),
                Transition("walk", "station", "there"),
            ],
            final={"there"},
        )

    assert (
        await machine(trains_go=True).start(run_id="r").run(app_on(store))
    ).failure() == "a strike"
    fixed = machine(trains_go=False)
    refused = (await fixed.resume("r").run(app_on(store))).failure()
    assert isinstance(refused, DefinitionChanged)
    forced = fixed.resume("r", force=True)
    assert (await forced.run(app_on(store))).unwrap().current == "there"
    kept = [isinstance(e, Completed) and e.step == "bus" for e in await read_entries(store, "r")]

    shorter = await cut(store, kept.index(True) + 1)
    plan = (await fixed.plan("r").run(app_on(shorter))).unwrap()

    assert plan.start == ("walk",)


async def test_without_the_code_a_plan_does_not_name_the_next_transition(
    store: MemoryStore,
) -> None:
    await orders.start(run_id="r").run(app_on(store))
    entries = await read_entries(store, "r")
    assert all(plan_resume(fold(entries[:n], "r")).start == () for n in (1, 2, 3, 4))


async def test_the_body_of_a_machine_can_be_part_of_a_workflow(store: MemoryStore) -> None:
    @workflow
    def both(states: list[Order]) -> Do[App, Any, list[Order]]:
        first = yield from orders.body()
        others = yield from par_traverse(
            states, lambda state: orders.body(state), key=lambda state: state.name
        )
        return [first.current, *(machine.current for machine in others)]

    points = await crash_everywhere(
        both, [Order.NEW, Order.PAID], lambda disk: app_on(disk, busy=1)
    )
    assert len(points) > 10

    app = app_on(store)
    assert (await both.start([Order.PAID], run_id="r").run(app)).unwrap() == [Order.SHIPPED] * 2
    steps = [done.step for done in (await read_checkpoint(store, "r")).completed_steps]
    assert steps == ["charge", "ship", "par_traverse[PAID]/ship"]


async def test_a_machine_is_a_node_of_a_graph() -> None:
    def deliver(order: Order) -> Effect[App, Any, Order]:
        return orders.body(order).map(lambda machine: machine.current)

    graph = StateGraph("shop").node("deliver", deliver).entry("deliver").exit("deliver").build()

    points = await crash_everywhere(graph, Order.NEW, lambda disk: app_on(disk, busy=2))

    assert len(points) > 10


def renamed(name: str, **options: Any) -> StateMachine[App, Any, Order]:
    """The machine of orders with a renamed first transition."""
    return StateMachine(
        "orders",
        initial=Order.NEW,
        transitions=[
            Transition(name, Order.NEW, Order.PAID),
            Transition("ship", Order.PAID, Order.SHIPPED),
        ],
        final={Order.SHIPPED},
        **options,
    )


async def test_a_changed_definition_is_rejected_unless_forced(store: MemoryStore) -> None:
    app = app_on(store, is_declined=True)
    await orders.start(run_id="r").run(app)

    error = (await renamed("pay").resume("r").run(app)).failure()

    assert isinstance(error, DefinitionChanged)
    assert "charge" in str(error)
    forced = (await renamed("pay").resume("r", force=True).run(app)).unwrap()
    assert [entry.transition for entry in forced.history] == ["pay", "ship"]


async def test_another_target_is_a_changed_definition(store: MemoryStore) -> None:
    def refuse(_: str) -> Effect[App, Declined, Outcome[str]]:
        return fail(Declined("no funds"))

    await only(refuse, target="there").start(run_id="r").run(app_on(store))
    error = (await only(refuse, target="elsewhere").resume("r").run(app_on(store))).failure()
    assert isinstance(error, DefinitionChanged)
    assert "'go: start -> elsewhere' was added" in str(error)


async def test_random_delays_are_recorded(store: MemoryStore) -> None:
    """A resumed run waits for the recorded delay, with its recorded jitter."""

    def act(_: str) -> Effect[object, str, Outcome[str]]:
        again: Outcome[str] = Retry("again")
        done: Outcome[str] = Moved("end")
        return transition_info().map(lambda info: again if info.retries < 3 else done)

    policy = RetryPolicy.constant(100).with_full_jitter().with_max_retries(5)
    jittery, clock = only(act, retry=policy), Timeline()
    machine = (await jittery.start(run_id="r").run(app_on(store), clock=clock)).unwrap()

    completed = (await read_checkpoint(store, "r")).completed_steps
    outputs: list[Any] = [done.output for done in completed]
    delays = [output["delay"] for output in outputs if output["outcome"] == "retry"]
    assert clock.slept == [pytest.approx(delay, abs=0.01) for delay in delays]
    assert len(set(delays)) == 3
    assert machine.metadata.total_attempts == {"go": 4}
