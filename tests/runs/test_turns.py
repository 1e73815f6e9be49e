"""Concrete interleavings: what happens is decided in one order, and every later life follows it.

Each test lives the lives of one run in virtual time. `broken` steps fail; `dies_at` kills the process.
"""

from __future__ import annotations

import anyio
import pytest

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    TimedOut,
    bracket,
    do,
    effect,
    fail,
    par,
    par_all,
    par_traverse,
    pure,
    race,
    sleep,
    step,
    workflow,
)
from effectflow.effects import from_async, suspend
from tests.exploration.lives import SIGNALS, End
from tests.exploration.scenes import AnyEffect, Env, Scene, act, in_turn, locally
from tests.exploration.virtual_time import Backend
from tests.exploration.world import Broken, Bug, Letter
from tests.sweeps import BACKENDS

both_backends = pytest.mark.parametrize("backend", BACKENDS)
pytestmark = both_backends

LATE = End("failed", "late")


def within(work: AnyEffect, seconds: float) -> AnyEffect:
    """Return work with a timeout, whose failure is called `late`."""
    return work.timeout(seconds).map_err(lambda e: Broken("late") if isinstance(e, TimedOut) else e)


# Cancellation.


def test_a_cancelled_step_that_needs_time_to_end_decides_the_race_when_it_has_ended(
    backend: Backend,
) -> None:
    def body() -> AnyEffect:
        slow_to_end = within(act("m", 60, cleanup=5), 1)
        return race([slow_to_end, in_turn(act("y", 2), act("y2", 1), act("y3", 10))])

    assert Scene(backend).live(body) == LATE
    scene = Scene(backend)
    assert scene.live(body, dies_at=3.5) == End("died")
    assert scene.live(body, by="resume") == LATE


def test_a_timeout_ends_an_acquisition_that_hangs(backend: Backend) -> None:
    def body() -> AnyEffect:
        return bracket(
            within(act("hangs", 1000), 1), lambda _: act("release"), lambda _: act("use")
        )

    scene = Scene(backend)
    assert scene.live(body) == LATE
    assert scene.now == 1
    assert not scene.done


def test_an_acquisition_within_a_cancelled_step_is_completed_and_released_after_a_crash(
    backend: Backend,
) -> None:
    @step
    def holding() -> Effect[Env, Broken, str]:
        return bracket(act("acquire", 5), lambda _: act("release", 1), lambda _: act("use", 100))

    def body() -> AnyEffect:
        return within(holding(), 1).or_else(lambda _: act("after", 1))

    scene = Scene(backend)
    assert scene.live(body, dies_at=1.5) == End("died")
    assert scene.live(body, by="resume") == End("value", "after")
    assert scene.done == {"acquire": 1, "release": 1, "after": 1}


def test_events_within_a_step_keep_their_order_although_they_are_saved_in_another(
    backend: Backend,
) -> None:
    @step
    def with_a_release() -> Effect[Env, Broken, str]:
        held = bracket(locally(5), lambda _: act("release", 4), lambda _: locally(100))
        return in_turn(locally(1), held)

    @step
    def both() -> Effect[Env, Broken, str]:
        one = within(with_a_release(), 2).or_else(lambda _: pure("late"))
        two = in_turn(locally(3), act("b", 0.5))
        return par(one, two).map(" ".join)

    scene = Scene(backend)
    assert scene.live(both, dies_at=6.5) == End("died")
    assert scene.live(both, by="resume") == End("value", "late b")
    assert scene.done == {"b": 1, "release": 1}


def test_a_run_that_is_cancelled_in_local_code_continues_its_finalizer_after_a_crash(
    backend: Backend,
) -> None:
    def body() -> AnyEffect:
        return in_turn(locally(2), locally(100).on_exit(act("release", 1)))

    scene = Scene(backend)
    assert scene.live(body, by="worker", cancel_at=5, dies_at=5.5) == End("died")
    assert scene.live(body, by="worker", cancel_at=5) == End("cancelled")
    assert scene.done == {"release": 1}


def test_a_run_that_is_cancelled_after_its_failure_ends_as_cancelled(backend: Backend) -> None:
    def body() -> AnyEffect:
        return act("f", 1).on_exit(locally(5))

    scene = Scene(backend, broken={"f"})
    assert scene.live(body, by="worker", cancel_at=3) == End("cancelled")


def test_another_workflow_inside_a_run_is_cancelled_once(backend: Backend) -> None:
    @workflow(name="inner")
    def inner(_: str) -> Effect[Env, Broken, str]:
        return act("inner", 5)

    def body() -> AnyEffect:
        refused = in_turn(locally(1), fail(Broken("no")))
        return par(inner.call(""), refused).map(str)

    scene = Scene(backend)
    assert scene.live(body, dies_after=3) == End("died")
    assert scene.live(body, by="resume") == End("failed", "no")
    assert scene.last is not None
    assert len(scene.last.journals.entries) <= 2  # no second run in place of the cancelled one
    assert not scene.done


# Local code.


def test_local_code_that_others_need_begins_again_in_each_life(backend: Backend) -> None:
    """A branch serves, and never ends; another one connects to it, and executes steps."""

    def body() -> AnyEffect:
        serving = anyio.Event()

        async def serve(_: object) -> None:
            serving.set()
            await anyio.sleep_forever()

        async def connect(_: object) -> None:
            await serving.wait()

        client = in_turn(from_async(connect), act("s1", 1), act("s2", 1))
        return race([from_async(serve), client])

    scene = Scene(backend)
    assert scene.live(body, dies_at=1.5) == End("died")
    assert scene.live(body, by="resume") == End("value", "s2")
    assert scene.done == {"s1": 1, "s2": 1}


def test_a_changed_step_beside_local_code_that_never_ends_is_an_error_at_once(
    backend: Backend,
) -> None:
    def body(name: str = "s1") -> AnyEffect:
        return race([locally(10**6), in_turn(act(name, 1), act("s2", 1))])

    scene = Scene(backend)
    assert scene.live(body, dies_at=1.5) == End("died")
    end = scene.live(lambda: body("renamed"), by="resume")
    assert (end.kind, end.text.partition(":")[0]) == ("refused", "DefinitionChanged")
    assert scene.now == 1.5
    assert scene.done == {"s1": 1}


def test_a_step_in_progress_that_has_another_name_now_is_changed_code(backend: Backend) -> None:
    scene = Scene(backend)
    assert scene.live(lambda: act("charge", 1), dies_at=0.5) == End("died")
    end = scene.live(lambda: act("pay", 1), by="resume")
    assert (end.kind, end.text.partition(":")[0]) == ("refused", "DefinitionChanged")
    assert not scene.done


# Limits.


def test_failed_items_that_fill_the_limit_are_tried_again(backend: Backend) -> None:
    def body() -> AnyEffect:
        return par_all([act(f"s{n}", 1) for n in range(5)], limit=2).map(" ".join)

    scene = Scene(backend, broken={"s0", "s1"})
    assert scene.live(body).kind == "failed"
    scene.broken.clear()
    assert scene.live(body, by="resume") == End("value", "s0 s1 s2 s3 s4")
    assert scene.done == {"s0": 2, "s1": 2, "s2": 1, "s3": 1, "s4": 1}


def test_items_with_keys_may_be_in_another_order(backend: Backend) -> None:
    def body(order: str = "abcd") -> AnyEffect:
        def item(key: str) -> AnyEffect:
            return in_turn(act("work", 1), act("more", 1), pure(key))

        found = par_traverse(order, item, limit=2, key=str)
        return found.map(lambda values: "".join(sorted(values)))

    scene = Scene(backend)
    assert scene.live(body, dies_at=1.5) == End("died")
    assert scene.live(lambda: body("cdab"), by="resume") == End("value", "abcd")
    assert scene.done == {"work": 4, "more": 4}


def test_what_is_tried_again_stays_within_the_limit(backend: Backend) -> None:
    working: set[int] = set()
    most: list[int] = []

    @effect(errors=Broken)
    async def work(env: Env, number: int) -> None:
        working.add(number)
        most.append(len(working))
        await anyio.sleep(1)
        working.remove(number)
        if "work" in env.broken:
            raise Broken(str(number))

    @step
    def second(number: int) -> Effect[Env, Broken, None]:
        return work(number)

    def body() -> AnyEffect:
        items = [in_turn(act("first", 0.1), second(number)) for number in range(10)]
        return par_all(items, limit=2).map(lambda _: "done")

    scene = Scene(backend, broken={"work"})
    assert scene.live(body).kind == "failed"
    scene.broken.clear()
    assert scene.live(body, by="resume") == End("value", "done")
    assert max(most) == 2
    assert scene.done == {"first": 10}


# Failures.


def test_a_corrected_bug_lets_the_sibling_that_it_cancelled_continue(backend: Backend) -> None:
    fixed: list[bool] = []

    @do
    def a() -> Do[Env, Broken, str]:
        yield from act("a1", 1)
        if not fixed:
            raise Bug("a")
        return (yield from act("a2", 1))

    def body() -> AnyEffect:
        return par(a(), act("b1", 5)).map(" ".join)

    scene = Scene(backend)
    assert scene.live(body) == End("defect", "a")
    fixed.append(True)
    assert scene.live(body, by="resume") == End("value", "a2 b1")
    assert scene.done == {"a1": 1, "a2": 1, "b1": 1}


def test_a_failure_whose_handler_has_begun_stands(backend: Backend) -> None:
    """A sibling's failure ends the handler, and only that one is tried again."""

    def body() -> AnyEffect:
        handler = par(act("handle", 60), act("c2", 1)).map(" ".join)
        return act("f", 1).or_else(lambda _: handler)

    scene = Scene(backend, broken={"f", "c2"})
    assert scene.live(body) == End("failed", "c2")
    scene.broken.clear()
    assert scene.live(body, by="resume") == End("value", "handle c2")
    assert scene.done == {"f": 1, "c2": 2, "handle": 1}


def test_a_failure_whose_handler_has_begun_stands_if_the_process_dies_before_the_run_ends(
    backend: Backend,
) -> None:
    def body() -> AnyEffect:
        handler = par(act("handle", 60), act("c2", 1)).map(" ".join)
        return act("f", 1).or_else(lambda _: handler)

    whole = Scene(backend, broken={"f", "c2"})
    whole.live(body)
    assert whole.last is not None
    scene = Scene(backend, broken={"f", "c2"})
    # With its last append, the run ends.
    assert scene.live(body, dies_after=whole.last.appends, is_durable=False) == End("died")
    assert scene.live(body, by="resume") == End("failed", "c2")
    assert scene.done["f"] == 1


def test_a_release_that_would_run_anyway_does_not_settle_the_failure_of_a_sibling(
    backend: Backend,
) -> None:
    """f0 fails, and its release has two steps. g fails between them.

    A resume leaves out the failure of g, and so f0 ends the run before g begins again.
    """

    def body() -> AnyEffect:
        released = act("f0", 1).on_exit(in_turn(act("release", 3), act("release2", 1)))
        return par(released, act("g", 2)).map(" ".join)

    scene = Scene(backend, broken={"f0", "g"})
    assert scene.live(body) == End("failed", "g")
    scene.broken.remove("g")
    assert scene.live(body, by="resume") == End("failed", "f0")
    assert scene.done == {"f0": 1, "g": 1, "release": 1, "release2": 1}


def test_a_handled_failure_is_not_tried_again_after_a_crash(backend: Backend) -> None:
    def body() -> AnyEffect:
        handled = act("f", 1).or_else(lambda _: pure("handled"))
        return in_turn(handled, locally(5)).map(lambda _: "end")

    scene = Scene(backend, broken={"f"})
    assert scene.live(body, dies_at=3) == End("died")
    assert scene.live(body, by="resume") == End("value", "end")
    assert scene.done == {"f": 1}


# Times and messages.


def test_a_run_that_timed_out_gets_a_new_deadline_when_it_is_resumed(backend: Backend) -> None:
    seconds = [2.0]

    def body() -> AnyEffect:
        return within(suspend(lambda: act("slow", seconds[0])), 1)

    scene = Scene(backend)
    assert scene.live(body) == LATE
    seconds[0] = 0.5
    assert scene.live(body, by="resume") == End("value", "slow")


def test_an_approval_before_the_deadline_counts_although_no_process_had_the_run(
    backend: Backend,
) -> None:
    """A person approves on day 2; the deadline is on day 3; no process has the run from day 1 to 4."""

    def body() -> AnyEffect:
        late = sleep(3).map(lambda _: "late")
        return race([late, SIGNALS["a"].wait().map(lambda _: "approved")])

    scene = Scene(backend, letters=[Letter(2, "a", 1)])
    assert scene.live(body, stops_at=1) == End("stopped")
    assert scene.live(body, by="resume", pause=3) == End("value", "approved")


def test_a_message_after_the_deadline_is_left_to_the_next_wait(backend: Backend) -> None:
    """While no process has the run, its deadline passes, and then a message arrives."""

    def body() -> AnyEffect:
        wait = SIGNALS["a"].wait()
        return within(wait, 1).or_else(lambda _: wait.map(lambda number: number + 100)).map(str)

    scene = Scene(backend, letters=[Letter(1.5, "a", 1)])
    assert scene.live(body, stops_at=0.5) == End("stopped")
    assert scene.live(body, by="resume", pause=1.5) == End("value", "101")


def test_a_message_that_was_received_after_a_handled_failure_is_not_waited_for_again(
    backend: Backend,
) -> None:
    @step(retry=RetryPolicy.constant(0.5).with_max_retries(1))
    def with_a_retry() -> Effect[Env, Broken, str]:
        return act("f", 1)

    def body() -> AnyEffect:
        handled = with_a_retry().or_else(lambda _: SIGNALS["a"].wait())
        return in_turn(handled, locally(5), act("after", 1))

    scene = Scene(backend, broken={"f"}, letters=[Letter(3, "a", 1)])
    assert scene.live(body, dies_at=5) == End("died")
    assert scene.live(body, by="resume") == End("value", "after")
    assert scene.done == {"f": 2, "after": 1}


# Stops.


@pytest.mark.parametrize("by", ["start", "worker"])
def test_a_step_that_a_deployment_stops_is_executed_by_the_next_life(
    backend: Backend, by: str
) -> None:
    def body() -> AnyEffect:
        return act("s", 5)

    scene = Scene(backend)
    assert scene.live(body, by=by, stops_at=1) == End("stopped")
    assert scene.done == {}
    assert scene.live(body, by=by) == End("value", "s")


def test_a_step_that_ends_although_its_life_is_stopped_is_not_executed_again(
    backend: Backend,
) -> None:
    @effect
    async def stubbornly(env: Env) -> str:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(2)
        env.note("s")
        return "s"

    @step
    def stubborn() -> Effect[Env, Broken, str]:
        return stubbornly()

    def body() -> AnyEffect:
        return in_turn(stubborn(), act("next", 1))

    scene = Scene(backend)
    assert scene.live(body, stops_at=1) == End("stopped")
    assert scene.live(body, by="resume") == End("value", "next")
    assert scene.done == {"s": 1, "next": 1}
