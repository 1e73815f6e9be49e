"""A step of a machine, without a store."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import Effect, RetryExhausted, RetryPolicy, current_step, pure
from effectflow.effects import from_fn
from effectflow.machines import (
    Abort,
    HistoryEntry,
    Machine,
    Moved,
    NoTransition,
    Retry,
    StateMachine,
    Transition,
    TransitionExhausted,
    UndeclaredState,
    transition_info,
)
from tests.apps import both_backends
from tests.builders.machine.orders import App, Declined, Order, World, only, orders
from tests.builders.machine.timeline import Timeline

pytestmark = pytest.mark.anyio


async def stepped(machine: Machine[Order], app: App, clock: Timeline) -> Machine[Order]:
    return (await orders.step(machine).run(app, clock=clock)).unwrap()


@both_backends
async def test_a_step_takes_the_first_transition_whose_guard_allows_it() -> None:
    begun = orders.begin()
    clock = Timeline()

    machine = await stepped(begun, App(), clock)

    assert (begun.current, machine.initial, machine.current) == (Order.NEW, Order.NEW, Order.PAID)
    assert list(machine.history) == [
        HistoryEntry("charge", Order.NEW, Order.PAID, machine.metadata.updated_at or clock.at, 1)
    ]
    assert machine.metadata.total_attempts == {"charge": 1}


async def test_a_machine_never_changes() -> None:
    begun = orders.begin()
    copy = orders.from_json(begun.to_json())

    await orders.step(begun).run(App())

    assert begun == copy
    with pytest.raises(FrozenInstanceError):
        begun.current = Order.PAID  # type: ignore[misc]


async def test_a_machine_may_be_stepped_twice_with_different_outcomes() -> None:
    paid = await stepped(orders.begin(), App(), Timeline())

    shipped = await stepped(paid, App(), Timeline())
    lost = await stepped(paid, App(World(has_truck=False)), Timeline())

    assert [entry.target for entry in shipped.history] == [Order.PAID, Order.SHIPPED]
    assert [entry.target for entry in lost.history] == [Order.PAID, Order.LOST]


@both_backends
async def test_retry_keeps_the_state_and_delays_the_next_attempt() -> None:
    app, clock = App(World(busy=2)), Timeline()

    once = await stepped(orders.begin(), app, clock)
    assert (once.current, len(once.history)) == (Order.NEW, 0)
    pending = once.metadata.pending
    assert pending is not None
    assert (pending.transition, pending.attempts, pending.feedback) == ("charge", 1, "busy 1")
    assert once.metadata.current_attempt == 1
    assert clock.slept == []

    twice = await stepped(once, app, clock)
    assert twice.metadata.pending is not None
    assert twice.metadata.pending.since == pending.since == twice.metadata.created_at
    paid = await stepped(twice, app, clock)
    assert clock.slept == [pytest.approx(1.0, abs=0.01), pytest.approx(2.0, abs=0.01)]
    assert paid.metadata.pending is None
    assert paid.metadata.total_attempts == {"charge": 3}
    assert [entry.attempt for entry in paid.history] == [3]


async def test_an_attempt_can_read_the_feedback_of_the_last_one() -> None:
    app = App(World(busy=2))

    await orders.run_until_final().run(app, clock=Timeline())

    assert app.world.done == ["charge (None)", "charge (busy 1)", "charge (busy 2)", "ship"]


async def test_exhausted_retries_leave_the_machine_in_its_state() -> None:
    app, clock = App(World(busy=9)), Timeline()

    result = await orders.run_until_final().run(app, clock=clock)

    error = result.failure()
    assert isinstance(error, TransitionExhausted)
    assert isinstance(error, RetryExhausted)
    assert (error.transition, error.state) == ("charge", Order.NEW)
    assert (error.attempts, error.error) == (4, "busy 4")
    assert "'charge' from state NEW was attempted 4 times" in str(error)
    assert len(app.world.done) == 4
    assert sum(clock.slept) == pytest.approx(1 + 2 + 4, abs=0.1)


async def test_a_machine_can_be_stepped_again_after_its_retries_are_exhausted() -> None:
    app, clock = App(World(busy=4)), Timeline()
    machine = orders.begin()
    for _ in range(3):
        machine = await stepped(machine, app, clock)
    assert isinstance((await orders.step(machine).run(app, clock=clock)).failure(), RetryExhausted)

    app.world.busy = 0
    paid = await stepped(machine, app, clock)

    assert [entry.attempt for entry in paid.history] == [4]


def counting(retry: RetryPolicy, own: RetryPolicy | None = None) -> StateMachine[Any, Any, Any]:
    """A machine that always asks for another attempt."""
    again: Effect[object, str, Any] = pure(Retry("again"))
    transitions = [Transition("try", "start", "end", lambda _: again, retry=own)]
    return StateMachine(
        "counting", initial="start", transitions=transitions, final={"end"}, retry=retry
    )


async def attempts_of(machine: StateMachine[Any, Any, Any]) -> int:
    error = (await machine.run_until_final().run(None, clock=Timeline())).failure()
    assert isinstance(error, TransitionExhausted)
    return error.attempts


async def test_a_transition_may_have_its_own_retry_policy() -> None:
    many, few = (RetryPolicy.constant(1).with_max_retries(n) for n in (7, 2))

    assert await attempts_of(counting(many)) == 8
    assert await attempts_of(counting(many, few)) == 3
    assert await attempts_of(counting(RetryPolicy.constant(1).with_max_elapsed(3.5))) == 4


@pytest.mark.parametrize("seed", [None, 7])
async def test_jittered_delays_are_within_their_bounds(seed: int | None) -> None:
    plain = RetryPolicy.constant(1).with_max_retries(40)
    seeded = plain if seed is None else plain.with_seed(seed)
    for policy in (seeded.with_jitter(0.5), seeded.with_full_jitter()):
        clock = Timeline()
        error = (await counting(policy).run_until_final().run(None, clock=clock)).failure()
        assert isinstance(error, TransitionExhausted)
        assert error.attempts == 41
        assert all(0 <= delay <= 1.5 for delay in clock.slept)
        assert len(set(clock.slept)) > 20


async def test_the_history_keeps_the_reason_of_an_abort() -> None:
    result = await orders.run_until_final().run(App(World(has_truck=False)))

    machine = result.unwrap()
    assert machine.current is Order.LOST
    assert [(entry.transition, entry.abort_reason) for entry in machine.history] == [
        ("charge", None),
        ("ship", "no truck"),
    ]


async def test_a_machine_may_continue_after_an_abort() -> None:
    transitions = [
        Transition("build", "start", "built", lambda _: pure(Abort("no", "lost")), abort_to="lost"),
        Transition("recover", "lost", "built"),
    ]
    machine: StateMachine[object, Any, str] = StateMachine(
        "recovering", initial="start", transitions=transitions, final={"built"}
    )
    ended = (await machine.run_until_final().run(None)).unwrap()
    assert [entry.transition for entry in ended.history] == ["build", "recover"]


async def test_a_final_state_ends_the_machine() -> None:
    ended = (await orders.run_until_final().run(App())).unwrap()

    assert orders.is_final(ended)
    assert await orders.step(ended).run(App()) == Success(ended)
    assert await orders.run_until_final(ended).run(App()) == Success(ended)


async def test_the_error_of_a_missing_transition_names_the_state_and_the_guards() -> None:
    def is_dry(_: str) -> bool:
        return False

    machine = StateMachine(
        "stuck",
        initial="wet",
        transitions=[
            Transition("fold", "wet", "folded", guard=is_dry),
            Transition("iron", "wet", "ironed", guard=lambda _: False),
            Transition("wear", "folded", "worn"),
        ],
        final={"ironed", "worn"},
    )

    error = (await machine.run_until_final().run(None)).failure()

    assert isinstance(error, NoTransition)
    assert (error.state, error.refused) == ("wet", ("fold", "iron"))
    assert str(error) == (
        "no transition can be taken from state wet: the guards of 'fold', 'iron' returned False"
    )


async def test_a_guard_that_raises_is_a_defect_that_names_the_transition() -> None:
    dividing = only(source=0, target=1, guard=lambda n: 1 / n > 0)
    with pytest.raises(ZeroDivisionError) as caught:
        await dividing.run_until_final().run(None)

    assert caught.value.__notes__ == ["in the guard of transition 'go'"]


async def test_a_step_fails_with_the_error_of_its_action() -> None:
    result = await orders.step(orders.begin()).run(App(World(is_declined=True)))

    assert isinstance(result.failure(), Declined)


@pytest.mark.parametrize(
    ("outcome", "declared"),
    [(Moved("elsewhere"), "end or finish"), (Abort("w", "elsewhere"), "end or finish or ruin")],
    ids=["Moved", "Abort"],
)
async def test_an_undeclared_state_is_a_defect(outcome: Any, declared: str) -> None:
    moving = only(
        lambda _: pure(outcome), target={"end", "finish"}, final={"end", "finish", "ruin"}
    )
    with pytest.raises(UndeclaredState) as caught:
        await moving.run_until_final().run(None)

    assert str(caught.value) == (
        f"the action of transition 'go' yielded {type(outcome).__name__} with state elsewhere, "
        f"but the transition declares {declared}"
    )
    assert caught.value.actual == "elsewhere"


async def test_equal_states_of_different_classes_are_different() -> None:
    counted = only(lambda _: pure(Moved(True)), source=0, target=1)
    with pytest.raises(UndeclaredState):
        await counted.run_until_final().run(None)


@pytest.mark.parametrize("given", [None, "end", Retry(3), Abort(None, "end")])  # type: ignore[arg-type]
async def test_an_action_must_yield_an_outcome(given: object) -> None:
    with pytest.raises(TypeError, match="transition 'go' must yield Moved"):
        await only(lambda _: pure(given)).run_until_final().run(None)


async def test_a_step_is_lazy_and_may_be_run_again() -> None:
    app = App()
    step = orders.step(orders.begin())
    assert app.world.done == []

    for _ in range(2):
        assert (await step.run(app)).unwrap().current is Order.PAID

    assert len(app.world.done) == 2


@dataclass(frozen=True)
class Draft:
    text: str


@dataclass(frozen=True)
class Review:
    text: str
    round: int


@dataclass(frozen=True)
class Public:
    text: str


def submit(draft: Draft) -> Effect[object, str, Moved[Review]]:
    return pure(Moved(Review(draft.text, 1)))


def revise(review: Review) -> Effect[object, str, Moved[Review] | Moved[Public]]:
    if review.round < 3:
        return pure(Moved(Review(review.text + "!", review.round + 1)))
    return pure(Moved(Public(review.text)))


articles = StateMachine(
    "articles",
    initial=Draft("news"),
    transitions=[
        Transition("submit", Draft, Review, submit),
        Transition("revise", Review, {Review, Public}, revise),
    ],
    final=[Public],
)


async def test_dataclass_states_are_distinguished_by_class() -> None:
    ended = (await articles.run_until_final().run(None)).unwrap()

    assert ended.current == Public("news!!")
    assert [entry.transition for entry in ended.history] == ["submit"] + ["revise"] * 3


async def test_a_machine_may_begin_in_another_state() -> None:
    ended = (await articles.run_until_final(articles.begin(Review("old", 3))).run(None)).unwrap()

    assert (ended.initial, ended.current) == (Review("old", 3), Public("old"))
    with pytest.raises(ValueError, match="CANCELLED is not a state of 'articles'"):
        articles.begin(Order.CANCELLED)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("begin", "end"),
    [((0, 0), (1, 1)), (frozenset({"a"}), frozenset({"b"})), (1, 2.5), (None, "done"), (b"x", "x")],
)
async def test_any_hashable_value_may_be_a_state(begin: Hashable, end: Hashable) -> None:
    machine = only(source=begin, target=end)
    ended = (await machine.run_until_final().run(None)).unwrap()
    assert ended.current == end
    assert machine.from_binary(ended.to_binary()) == ended


async def test_transition_info_works_only_in_an_action() -> None:
    with pytest.raises(LookupError):
        await transition_info().run(None)


async def test_an_action_is_a_step_outside_a_run_too() -> None:
    seen: list[str] = []
    act = (
        from_fn(lambda _: current_step())
        .map(lambda info: seen.append(info.step))
        .map(lambda _: Moved("end"))
    )
    await only(lambda _: act).run_until_final().run(None)
    assert seen == ["go"]


async def test_a_machine_of_many_steps_keeps_its_history() -> None:
    transitions: Any = [
        Transition("turn", int, int, lambda n: pure(Moved(n + 1)), guard=lambda n: n < 3_000)
    ]
    machine: StateMachine[object, Any, int] = StateMachine(
        "long", initial=0, transitions=transitions, final={3_000}
    )
    ended = (await machine.run_until_final().run(None)).unwrap()
    assert [entry.target for entry in ended.history] == list(range(1, 3_001))
    assert ended.history[-1] is list(ended.history)[-1]
    assert len(repr(ended)) < 10_000


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda _: pure(False), "an effect"),
        (lambda _: anyio.sleep(0), "an awaitable"),
        (lambda _: Awaited(), "an awaitable"),
    ],
)
async def test_a_guard_that_returns_an_effect_or_awaitable_is_a_defect(
    answer: Any, kind: str
) -> None:
    with pytest.raises(TypeError, match=f"^the guard of transition 'go' returned {kind}"):
        await only(guard=answer).run_until_final().run(None)


class Awaited:
    def __await__(self) -> Iterator[None]:
        yield
