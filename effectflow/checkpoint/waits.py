"""The waits of a durable flow, for a time or a message.

A wait is recorded when it begins, so that the run can be suspended meanwhile. Within a step that may
not be suspended, it is not recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from effectflow.checkpoint.entries import Waiting
from effectflow.checkpoint.recording import RecordedWait
from effectflow.checkpoint.schema import LATEST
from effectflow.checkpoint.values import Tree
from effectflow.effects.paths import as_name
from effectflow.effects.scope import Scope

if TYPE_CHECKING:
    from effectflow.checkpoint.flow import DurableFlow

A = TypeVar("A")


async def wait_for(flow: DurableFlow, scope: Scope, seconds: float) -> None:
    """Wait. A resume waits only for the remaining time."""
    run = flow.run
    path = flow.next_path("sleep")
    if not _is_durable(flow, scope) or not seconds > 0:
        await run.sleep(path, seconds, scope)
        return
    until = await _recorded_time(flow, scope, path, lambda: run.time_after(seconds))
    await rest_until(flow, path, until, seconds, scope)


async def wait_until(flow: DurableFlow, scope: Scope, until: float) -> None:
    """Wait until a time, in seconds since the epoch. A resume waits for the recorded one."""
    path = flow.next_path("sleep")
    if _is_durable(flow, scope):
        until = await _recorded_time(flow, scope, path, lambda: min(until, LATEST))
    await rest_until(flow, path, until, math.inf, scope)


async def _recorded_time(
    flow: DurableFlow, scope: Scope, path: str, choose: Callable[[], float]
) -> float:
    """Return the recorded time of a wait. If there is none yet, record the given one."""
    run = flow.run
    run.writer.check()
    if flow.reach(path, scope):
        recorded = run.recording.waits[path].until
        assert recorded is not None
        return recorded
    await flow.check(scope, path)
    until = choose()
    begin_wait(flow, scope, path, until=until)
    return until


async def wait_for_retry(flow: DurableFlow, scope: Scope, until: float, longest: float) -> None:
    """Wait before a retry that a decision has recorded; the parameters are as in `Flow`."""
    if _is_durable(flow, scope):
        await rest_until(flow, flow.last_path("retry"), until, longest, scope)
    else:
        await scope.clock.sleep(min(max(0.0, until - flow.run.now()), longest))


async def rest_until(
    flow: DurableFlow,
    path: str,
    until: float,
    longest: float,
    scope: Scope,
    *,
    what: str = "a time",
) -> None:
    """Wait until a recorded time. The flow rests meanwhile, unless a step around it is in progress.

    Parameters:
        until: the time, in seconds since the epoch.
        longest: the seconds to wait at most.
        what: what it waits for, for people.
    """
    run = flow.run
    # The clock of another machine may be ahead. Never wait longer because of that.
    left = 0.0 if _is_over(flow, path, scope) else min(max(0.0, until - run.now()), longest)
    if left > 0 and _can_rest(flow, scope):
        with run.rest(flow, scope, what, run.now() + left):
            await run.sleep(path, left, scope)
    else:
        await run.sleep(path, left, scope)


def _is_over(flow: DurableFlow, path: str, scope: Scope) -> bool:
    """Return whether a recorded wait is over, because an earlier life continued after it.

    The clock may have been set back since.
    """
    known = flow.run.recording
    recorded = known.waits.get(path) or known.decisions.get(path)
    if recorded is None:
        return False
    if scope.was_cancelled():
        # That the flows around it continued proves nothing, as it may have been cancelled in this wait.
        cursor = flow.cursor
        return cursor is not None and cursor.has_others_ahead(path, recorded.sequence, scope.limit)
    return flow.has_gone_on(scope, path, recorded.sequence)


async def receive(flow: DurableFlow, scope: Scope, topic: str, decode: Callable[[Tree], A]) -> A:
    """Wait for the next message about a topic. A resume yields the recorded one.

    Parameters:
        topic: the topic.
        decode: returns the value in the message, or raises MalformedValue.
    """
    run = flow.run
    check_can_wait(flow, scope, topic)
    path = flow.next_path(as_name(topic))
    run.writer.check()
    if flow.reach(path, scope):
        wait = run.recording.waits[path]
        if wait.received is not None and wait.received < scope.limit:
            return run.decode_message(wait.value, path, decode)
        await flow.check(scope, path)
    else:
        await flow.check(scope, path)
        begin_wait(flow, scope, path, topic=topic)
    while True:
        message = await run.next_message(flow, scope, path, topic)
        # An operator may have decided at the same time. Then the message stays in the mailbox.
        await flow.check(scope, path)
        if run.mailbox.first(topic) is message:
            break
    tree = run.mailbox.open(message)
    value = run.decode_message(tree, path, decode)
    sequence = run.take_message(path, message, tree)
    if flow.is_in_step:
        received = RecordedWait(sequence, None, topic, sequence, tree)
        run.recording.add_received(path, received, flow.body.path)
    return value


def check_can_wait(flow: DurableFlow, scope: Scope, name: str) -> None:
    """Raise TypeError inside a step, an acquisition or a finalizer, which are not suspended."""
    if not _is_durable(flow, scope):
        where = "an acquisition or finalizer" if scope.is_shielded else f"step {flow.path!r}"
        raise TypeError(
            f"{name!r} is awaited inside {where} of run {flow.run.run_id!r}, which cannot be "
            "suspended: wait between steps"
        )


def begin_wait(
    flow: DurableFlow,
    scope: Scope,
    path: str,
    *,
    until: float | None = None,
    topic: str = "",
    child: str = "",
) -> None:
    """Record a wait; the parameters are as in `Waiting`."""
    run = flow.run
    if run.may_record:
        flow.record_from_here()
        settles = () if scope.is_observing else flow.settle()
        item = flow.take_item()
        run.writer.add(Waiting(path, until, run.now(), item, settles, topic, child))


def _is_durable(flow: DurableFlow, scope: Scope) -> bool:
    """Return whether a wait here is recorded, so that the run can be suspended meanwhile."""
    return flow.may_wait and not scope.is_shielded


def _can_rest(flow: DurableFlow, scope: Scope) -> bool:
    """Return whether the run can be suspended here: the flow records decisions, or once it waits."""
    return flow.may_wait and (flow.is_recording or not scope.is_shielded)
