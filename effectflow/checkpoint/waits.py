"""The waits of a fiber: for a time or a message. And deadlines, which a fiber does not wait for.

A wait is recorded when it begins, so that all lives of the run share its deadline, and the run can be
suspended meanwhile. Within a step both entries are held back, until the step begins something or the
run is suspended.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import anyio

from effectflow.checkpoint.causes import Cause, Held
from effectflow.checkpoint.entries import Signalled, TimerFired, Value, Waiting
from effectflow.checkpoint.errors import CLASS_CHANGED, CorruptCheckpoint
from effectflow.checkpoint.notifications import woken_by
from effectflow.checkpoint.observers import NOT_OBSERVED, RunWaits, Surroundings
from effectflow.checkpoint.ordered_fiber import Intent, Rest
from effectflow.checkpoint.schema import LATEST
from effectflow.checkpoint.store import Message
from effectflow.checkpoint.values import MalformedValue, Tree
from effectflow.effects.event_loop import is_cancellation
from effectflow.effects.paths import as_name

if TYPE_CHECKING:
    from effectflow.checkpoint.durable_fiber import DurableFiber
    from effectflow.effects.scope import Operator, Scope

A = TypeVar("A")


async def rest_during(
    fiber: DurableFiber,
    scope: Scope,
    what: str,
    wait: Callable[[], Awaitable[object]],
    *,
    until: float = math.inf,
    look: Callable[[], object] | None = None,
) -> None:
    """Let a fiber rest while it awaits a time, a message or another run. Then wait for its turn.

    A cancellation by an operator ends the rest in the same turn, without an event.

    Parameters:
        what: what it waits for, in words.
        wait: waits.
        until: when it continues by itself, in seconds since the epoch.
        look: ends the wait, so that the fiber checks whether it still has to wait.
    """
    turns = fiber.turns
    if fiber.run.planning is not None:
        await turns.rest_in_plan(fiber, scope)
    fiber.resting = rest = Rest(scope, what, until, look)
    around: AbstractContextManager[object] = NOT_OBSERVED
    if fiber.run.observers:
        event = RunWaits(fiber.run.run_id, what, None if until == math.inf else until)
        fiber.run.notify(event)
        around = Surroundings(fiber.run.surrounding, event)
    # What such a step has begun must not be cut off by a suspension.
    is_pinned = scope.is_at_most_once
    if is_pinned:
        turns.working[fiber] = None
    turns.release(fiber)
    try:
        with around:
            if scope.is_shielded:
                # No cancellation reaches it.
                with fiber.run.stopping.ends_wait(what):
                    await wait()
            else:
                await wait()
    except BaseException as raised:
        if is_cancellation(raised) and scope.cause() is not None:
            await _end_rest(fiber, scope, rest)
            await fiber.check(scope)
        fiber.resting = None
        raise
    finally:
        turns.working.pop(fiber, None)
    await _end_rest(fiber, scope, rest)


async def _end_rest(fiber: DurableFiber, scope: Scope, rest: Rest) -> None:
    if fiber.resting is rest:
        fiber.resting = None
        await fiber.turns.arrive(fiber, scope)
    else:
        # `wake_cancelled` has made it ready.
        await fiber.turns.regain(fiber, scope)


async def sleep_until(
    fiber: DurableFiber, scope: Scope, choose: Callable[[], float], longest: float
) -> None:
    """Wait until a time, in seconds since the epoch.

    Parameters:
        choose: returns the time, if no earlier life has.
        longest: the seconds to wait at most, because the clock that has chosen may be ahead.
    """
    run, turns = fiber.run, fiber.turns
    path = fiber.next_path("sleep")
    await fiber.check(scope)
    begun = await fiber.reach_begin(path, scope, Waiting)
    if await fiber.reach_end(path, scope, TimerFired) is not None:
        await fiber.check(scope)
        return
    await turns.to_frontier(fiber, scope, Intent.WAIT)
    await fiber.check(scope)
    if begun is None:
        fiber.begins()
        begun = Waiting(path, min(max(choose(), 0.0), LATEST), run.now(), turn=turns.turn)
        run.record(begun, fiber.step)
    until = begun.until or 0.0
    left = min(max(0.0, until - run.now()), longest)
    if left > 0:
        wait = partial(scope.clock.sleep, left)
        await rest_during(fiber, scope, "a time", wait, until=run.now() + left)
    elif until <= run.opened_at:
        await turns.arrive(fiber, scope, since=until)
    else:
        await fiber.breathe(scope)
    fired = TimerFired(path, run.now(), turns.turn)
    fiber.follows(path, run.record(fired, fiber.step))
    await fiber.check(scope, has_begun=True)


async def wait_until_retry(fiber: DurableFiber, scope: Scope, until: float, longest: float) -> None:
    """Wait for the next attempt of a step, whose beginning will be the event."""
    left = min(max(0.0, until - fiber.run.now()), longest)
    if left > 0:
        wait = partial(scope.clock.sleep, left)
        await rest_during(fiber, scope, "a retry", wait, until=fiber.run.now() + left)
    await fiber.check(scope)


async def leave_to_another_worker(fiber: DurableFiber, scope: Scope) -> None:
    """Wait until the run is suspended, because its worker begins nothing more."""
    await rest_during(fiber, scope, "another worker", anyio.sleep_forever, until=0.0)


async def receive(
    fiber: DurableFiber, scope: Scope, topic: str, declared: object, decode: Callable[[Tree], A]
) -> A:
    """Wait for the next message about a topic. A resume yields the recorded one.

    Parameters:
        topic: the topic.
        declared: the annotation of the value in the message, for those who ask what it waits for.
        decode: returns the value in the message, or raises MalformedValue.
    """
    run, turns = fiber.run, fiber.turns
    if run.planning is not None:
        run.planning.awaited[topic] = declared
    path = fiber.next_path(as_name(topic))
    await fiber.check(scope)
    begun = await fiber.reach_begin(path, scope, Waiting)
    received = await fiber.reach_end(path, scope, Signalled)
    if received is not None:
        await fiber.check(scope)
        return _decoded(fiber, received.value, path, decode)
    await turns.to_frontier(fiber, scope, Intent.WAIT)
    await fiber.check(scope)
    if begun is None:
        fiber.begins()
        run.add(Waiting(path, None, run.now(), topic=topic, turn=turns.turn), fiber.step)
    message = turns.order.take_returned(path, topic)
    if message is not None:
        # An earlier attempt of a step around it has received it.
        tree = message.value
    else:
        await _await_message(fiber, scope, topic)
        # The message stays in the mailbox if an operator has cancelled the wait meanwhile.
        await fiber.check(scope)
        message = run.mailbox.first(topic)
        assert message is not None
        tree = run.mailbox.value(message)
    value = _decoded(fiber, tree, path, decode)
    if isinstance(message, Message):
        run.mailbox.take(message)
    entry = Signalled(path, topic, message.key, tree, run.now(), turn=turns.turn)
    turns.order.receive(entry)
    fiber.follows(path, run.add(entry, fiber.step))
    return value


async def _await_message(fiber: DurableFiber, scope: Scope, topic: str) -> None:
    """Wait for the first message about a topic, and for the turn of its arrival. Leave it there."""
    run = fiber.run
    if await _has_arrived(fiber, scope, topic):
        return
    if run.planning is not None:
        await fiber.turns.rest_in_plan(fiber, scope)
    run.mailbox.require(f"a wait for {topic.replace(':', ' ', 1)}")
    async with woken_by(run.checkpoints.store, run.run_id) as woken:
        while True:
            await fiber.unrecorded(scope, run.requests.look())
            await fiber.check(scope)
            if await _has_arrived(fiber, scope, topic):
                return
            await rest_during(fiber, scope, topic.replace(":", " ", 1), woken.wait, look=woken.set)


async def _has_arrived(fiber: DurableFiber, scope: Scope, topic: str) -> bool:
    """Return whether there is a message, in a turn of its arrival."""
    run = fiber.run
    message = run.mailbox.first(topic)
    since = None if message is None else run.requests.came_before(message)
    if since is not None:
        await fiber.turns.arrive(fiber, scope, since=since)
    # Another fiber may have taken it.
    return run.mailbox.first(topic) is not None


def _decoded(fiber: DurableFiber, tree: Tree, path: str, decode: Callable[[Tree], A]) -> A:
    """Return the value of a message. Halt the run if it is not what the wait declares."""
    try:
        return decode(tree)
    except MalformedValue as error:
        reason = f"the message that {path!r} receives is not what the signal declares: {error}. "
        reason += CLASS_CHANGED
        raise fiber.run.halt(CorruptCheckpoint(fiber.run.run_id, reason)) from error


class Deadline:
    """A deadline around the work within an operator. It fires in a turn of its own.

    It cancels the work, and the operator has decided then.
    """

    def __init__(self, fiber: DurableFiber, operator: Operator, seconds: float) -> None:
        self._fiber = fiber
        self._operator = operator
        self._step = fiber.step
        self._seconds = seconds
        self._known: tuple[int | Held, float] | None = None
        self._fired: int | None = None
        self._is_closed = False
        # A stop of the run does not end it, because a finalizer may go on.
        self._timer = anyio.CancelScope(shield=True)
        self._cut = operator.cut = anyio.CancelScope()

    async def __aenter__(self) -> None:
        path, turns = self._operator.path, self._fiber.turns
        self._known = self._recorded()
        turns.deadlines[self] = None
        self._fired = turns.replay.next_at(path)
        if self._fired is not None:
            turns.replay.expect(self._fired, TimerFired, self._fire_again)
        elif turns.is_live:
            self.begin_live()
        self._cut.__enter__()

    def _recorded(self) -> tuple[int, float] | None:
        """Return the entry number and the time of the deadline, if an earlier life set it."""
        run, path = self._fiber.run, self._operator.path
        known = run.turns.order.values.get(path)
        if known is None:
            return None
        number, until = known
        if not isinstance(until, int | float) or not math.isfinite(until):
            raise run.halt_at(number, "Value", path)
        return number, until

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        self._is_closed = True
        self._timer.cancel()
        turns = self._fiber.turns
        turns.deadlines.pop(self, None)
        turns.forget(self._fire)
        if self._fired is not None:
            turns.replay.expect_no_more(self._fired)
        return self._cut.__exit__(kind, raised, traceback)

    @property
    def path(self) -> str:
        """The path of the operator."""
        return self._operator.path

    @property
    def until(self) -> float:
        """When it fires, in seconds since the epoch."""
        assert self._known is not None
        return self._known[1]

    def begin_live(self) -> None:
        """Begin to wait, once the replay is over."""
        run, turns = self._fiber.run, self._fiber.turns
        if self._known is None:
            until = run.time_after(self._seconds)
            entry = Value(self._operator.path, until, run.now())
            self._known = run.record(entry, self._step), until
        left = min(self.until - run.now(), self._seconds)
        if left <= 0 and self.until <= run.opened_at:
            turns.announce(self._fire, since=self.until)
        elif run.planning is None:
            clock = self._operator.outer.clock
            run.stopping.start(self._wait, clock.move_on_after(max(left, 0.0)))

    async def _wait(self, limit: AbstractContextManager[object]) -> None:
        with self._timer, limit:
            await anyio.sleep_forever()
        if self._timer.cancel_called:
            return
        if self._fiber.turns.is_over:
            self._operator.is_decided = True
            self._cut.cancel()
        else:
            self._fiber.turns.announce(self._fire)

    def _fire(self) -> None:
        operator = self._operator
        # What an outer operator has cancelled decides nothing.
        if self._is_closed or operator.is_decided or operator.outer.cancelling_operator():
            return
        run, turns = self._fiber.run, self._fiber.turns
        entry = TimerFired(operator.path, run.now(), turns.turn)
        self._decide(run.record(entry, self._step))

    def _fire_again(self) -> None:
        self._decide(self._fiber.turns.replay.number_taken)

    def _decide(self, fired: int | Held) -> None:
        operator = self._operator
        path = operator.path
        operator.is_decided = True
        assert self._known is not None
        self._fiber.turns.deadlines.pop(self, None)
        cause = Cause((path, fired))
        # A resume of a run that has failed by it sets a new deadline.
        cause.follow(path, self._known[0])
        operator.causes = [cause]
        self._cut.cancel()
        self._fiber.turns.wake_cancelled(self._fiber)
