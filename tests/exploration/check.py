"""What every program may rely on, whatever happens to the processes that run it.

- A completed step never runs again, except in a new attempt of a step around it with `retry=`.
- The engine never refuses code that has not changed, and no life hangs.
- A run that has ended does nothing when it is started again, and ends alike.
- A replay of a run that has ended does nothing, and ends alike.
- What was acquired is released, and not used before or after that.
- A saga that does not succeed undoes all of its bookings and only these.
- A run receives each message once, in order, and loses none.
- The items that work at the same time are never more than the limit.
- No run fails because something in it was cancelled.
- A failed run whose failure began nothing succeeds where it failed, once the cause is corrected.

`world.py` checks resources and limits where they are used; everything else is here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from effectflow.checkpoint import Completed, Failed, ResumePlan
from tests.exploration.lives import End, Lived
from tests.exploration.processes import Journals
from tests.exploration.world import ABORTED, Problem, StepKey, World, node_name

REFUSED = "the engine refuses to go on"
HANGS = "a life hangs"
AGAIN = "a completed step runs again"
NOT_CLOSED = "a process does not release what it has acquired"
NOT_RELEASED = "something is acquired and never released"
OTHER_START = "a run that has ended ends differently when it is started again"
BUSY_START = "a run that has ended does something when it is started again"
OTHER_REPLAY = "a replay ends differently"
BUSY_REPLAY = "a replay does something"
PLAN = "a plan sees a problem, or changes something"
CAUSED_BY_CANCELLATION = "a run fails because something was cancelled"
NOT_RETRIED = "a failure that began nothing is not tried again"


def completed(journals: Journals) -> Counter[StepKey]:
    """Return how often each step has completed."""
    return Counter(
        StepKey(run_id, entry.step)
        for run_id, entries in journals.entries.items()
        for entry in entries
        if isinstance(entry, Completed)
    )


def problems_of_life(
    lived: Lived, world: World, known: Counter[StepKey], done: Counter[StepKey]
) -> Iterator[Problem]:
    """Yield what went wrong in a life.

    Parameters:
        known: the steps that were completed before it.
        done: how often each step had acted before it.
    """
    end = lived.end
    if end.kind == "refused":
        yield Problem(f"{REFUSED}: {end.text.partition(':')[0]}", end.text)
    if end.kind == "hangs":
        yield Problem(HANGS, end.text)
    for error in lived.errors:
        yield Problem(f"the engine logs an error: {error.partition(':')[0]}", error)
    if lived.life.held and end.kind != "died":
        yield Problem(NOT_CLOSED, " ".join(sorted(lived.life.held)))
    if ABORTED in end.names:
        yield Problem(CAUSED_BY_CANCELLATION, str(end))
    acted = world.done - done
    twice = completed(lived.journals)
    for key in sorted(known | twice, key=str):
        runs_again = (key in known and acted[key]) or twice[key] > 1
        if runs_again and not _may_run_again(key, world, lived.journals):
            yield Problem(AGAIN, f"{world.names.get(key)}, {key}")


def _may_run_again(key: StepKey, world: World, journals: Journals) -> bool:
    """Return whether a step around this one has failed, and may have been retried."""
    if key not in world.names:
        return False
    retried = retried_around(world, node_name(world.names[key]))
    failed = {
        world.names.get(StepKey(run_id, entry.step))
        for run_id, entries in journals.entries.items()
        for entry in entries
        if isinstance(entry, Failed)
    }
    return bool(retried & failed)


def problems_of_end(end: End, world: World) -> Iterator[Problem]:
    """Yield what is wrong in the world once a run has ended."""
    if world.held:
        yield Problem(NOT_RELEASED, f"{' '.join(sorted(world.held))} after {end}")
    yield from _problems_of_sagas(end, world)
    yield from _problems_of_messages(world)


def _problems_of_sagas(end: End, world: World) -> Iterator[Problem]:
    for name in sorted(world.booked):
        # An inner saga that has lost a race is undone, although the outer one succeeds.
        is_kept = all(saga.name in world.kept for saga in world.ancestry.sagas(name))
        if not is_kept and not world.undone[name]:
            yield Problem("something is booked, not kept and not undone", f"{name} after {end}")
        if is_kept and world.undone[name] and not retried_around(world, name):
            yield Problem("something is undone, but its saga has succeeded", f"{name} after {end}")
    for name in sorted(world.undone - world.booked):
        if name not in world.booked:
            yield Problem("something is undone that was not booked", name)


def retried_around(world: World, name: str) -> set[str]:
    """Return the steps around a node that have more than one attempt."""
    around = world.ancestry.nodes(name)
    return {node.name for node in around if node.kind == "step of" and node.count > 1}


def _problems_of_messages(world: World) -> Iterator[Problem]:
    for topic in "ab":
        sent = [number for number in world.sent if world.letter(number).topic == topic]
        taken = [number for number in world.taken if world.letter(number).topic == topic]
        if len(set(taken)) < len(taken):
            yield Problem("a message is taken twice", f"{taken}")
        elif taken != sent[: len(taken)]:
            yield Problem(
                "a message is skipped, or received in another order", f"{taken} of {sent}"
            )
    for number in world.taken:
        receivers = world.delivered.get(number, set())
        if not receivers:
            yield Problem("a message is taken, and nobody receives it", f"{number}")
        elif len(receivers) > 1:
            yield Problem("a message is received twice", f"{number} by {sorted(receivers)}")


def is_final(plan: ResumePlan | None) -> bool:
    """Return whether a plan says that a resume of a failed run executes nothing."""
    return plan is not None and not plan.start and not plan.unverified and bool(plan.recurs)
