"""What must hold at the end of a soak."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import anyio

from effectflow.checkpoint import (
    BeforeStep,
    Completed,
    Entry,
    RunInfo,
    RunQuery,
    RunStatus,
    ServiceStore,
    read_entries,
    verify_run,
)
from effectflow.checkpoint.entries import (
    CancelRequested,
    Finished,
    Paused,
    Resumed,
    Signalled,
    Started,
)
from effectflow.checkpoint.store import NOTICE, PAUSE, Message
from effectflow.effects.paths import StepPath
from tests.service.soak.journeys import (
    CHANGED,
    DECLINED,
    PAID,
    Plan,
    SideEffect,
    detour,
    payment,
    side_effects,
    trifle,
)
from tests.service.soak.operators import KEPT_TRIFLES, operator_of
from tests.service.soak.processes import Place


async def wait_until_all_have_ended(place: Place) -> None:
    """Help until all runs have ended, also the errands of cancelled journeys, and all forks are made."""
    async with place.open() as store, operator_of(place) as operator:
        await operator.help()
        while await unfinished(store):
            await anyio.sleep(0.1)
            await operator.help()


async def unfinished(store: ServiceStore) -> list[RunInfo]:
    """Return the runs that have not ended. Journeys may end as failed."""
    return [
        info
        for info in await store.find(RunQuery(limit=None))
        if not (
            info.summary.status.has_ended
            or (info.summary.status is RunStatus.FAILED and info.summary.workflow != payment.name)
        )
    ]


async def tell_unfinished(place: Place) -> None:
    """Print what is known of the runs that have not ended."""
    async with place.open() as store:
        for info in await unfinished(store):
            await tell(store, info)


async def tell(store: ServiceStore, info: RunInfo) -> None:
    """Print what is known of a run, and the journal of the one around it."""
    print(info, await store.mailbox(info.run_id))
    for run_id in filter(None, (info.run_id, info.summary.parent)):
        print(*await read_entries(store, run_id), "", sep="\n")


async def check(place: Place) -> None:
    """Check all runs. No process drives any."""
    effects = defaultdict[str, list[SideEffect]](list)
    for effect in side_effects(place.world):
        effects[effect.run_id].append(effect)
    plans = {plan.run_id: plan for plan in place.plans}
    payments = {
        f"{run_id}{end}": kind
        for run_id, kind in place.payments.items()
        for end in ("", "-fork", "-again")
    }
    async with place.open() as store:
        runs = {info.run_id: info for info in await store.find(RunQuery(limit=None))}
        assert effects.keys() <= runs.keys()
        trifles = {run_id for run_id, info in runs.items() if info.summary.workflow == trifle.name}
        assert len(trifles) <= KEPT_TRIFLES
        known = plans.keys() | payments.keys() | trifles
        assert {run_id for run_id, info in runs.items() if not info.summary.parent} == known
        for run_id, info in runs.items():
            top = top_of(run_id, runs)
            try:
                if top in plans:
                    await check_run(store, info, plans[top], effects[run_id])
                else:
                    await check_other(store, info, payments.get(run_id), effects[run_id])
            except AssertionError:
                await tell(store, info)
                raise


async def check_run(
    store: ServiceStore, info: RunInfo, plan: Plan, effects: Sequence[SideEffect]
) -> None:
    """Check one journey or errand, and what it has left in the store and in the world."""
    assert info.summary.status in right_ends(plan, info), plan
    entries = await check_rest(store, info)
    check_side_effects(entries, effects)
    if info.run_id == plan.run_id:
        check_received(plan, entries)
        check_unbooked(plan, entries)


async def check_other(
    store: ServiceStore, info: RunInfo, kind: str | None, effects: Sequence[SideEffect]
) -> None:
    """Check a payment of this kind, or a trifle."""
    assert info.summary.status is RunStatus.COMPLETED
    entries = await check_rest(store, info)
    if kind is None:
        return
    is_fork = info.run_id.endswith("-fork")
    assert isinstance(entries[0], Started)
    assert bool(entries[0].forked_from) == info.run_id.endswith(("-fork", "-again"))
    assert [e.step for e in effects].count("act") >= 1 - is_fork
    assert isinstance(entries[-1], Finished)
    match entries[-1].output:
        case [int(first), int(paid)]:
            assert (first == CHANGED) == is_fork
            assert paid == {"complete": PAID, "fail": DECLINED}.get(kind, paid)
            assert (paid < PAID) == (kind == "retry")
        case output:
            raise AssertionError(output)
    if is_fork:
        assert "act" not in {e.step for e in effects}, "the fork has executed what it has copied"
    else:
        check_side_effects(entries, effects)


async def check_rest(store: ServiceStore, info: RunInfo) -> list[Entry]:
    """Check what holds for all runs at their ends. Return the entries of the run."""
    assert (await verify_run(store, info.run_id)).problem is None
    # An operator may have died while it held the run, and nobody has needed the lease since.
    assert not info.is_held(time.time())
    assert [one for one in await store.mailbox(info.run_id) if not may_keep(info, one)] == []
    entries = await read_entries(store, info.run_id)
    for entry, following in pairwise(entries):
        if isinstance(entry, Paused):
            assert entry.by == "operator"
            # Workers continue it only for its cancellation.
            is_unpaused = isinstance(following, Resumed) and following.by == "operator"
            assert is_unpaused or info.summary.status is RunStatus.CANCELLED
    requests = [entry for entry in entries if isinstance(entry, CancelRequested)]
    assert len(requests) == (info.summary.status is RunStatus.CANCELLED)
    return entries


def may_keep(info: RunInfo, message: Message) -> bool:
    """Return whether a run may end with this message: one that failed keeps some for a resume.

    It can fail before it reads the notice about the end of an errand that it has waited for, or a
    request to pause it.
    """
    return info.summary.status is RunStatus.FAILED and message.topic in (NOTICE, PAUSE)


def top_of(run_id: str, runs: dict[str, RunInfo]) -> str:
    """Return the journey to which a run belongs."""
    parent = runs[run_id].summary.parent
    return top_of(parent, runs) if parent else run_id


def right_ends(plan: Plan, info: RunInfo) -> set[RunStatus]:
    """Return the statuses that a journey or an errand may end in."""
    if not info.summary.parent:
        return {plan.ends}
    if plan.ends is RunStatus.CANCELLED:
        return {RunStatus.COMPLETED, RunStatus.CANCELLED}
    return {RunStatus.COMPLETED}


def check_side_effects(entries: Sequence[Entry], effects: Sequence[SideEffect]) -> None:
    """Check that what steps did is in the journal: none without an attempt, and none after completion."""
    begun = set[tuple[str, int]]()
    completed: dict[str, object] = {}
    for entry in entries:
        match entry:
            case BeforeStep(step, attempt):
                assert step not in completed, f"{step} ran again"
                assert (step, attempt) not in begun, f"{step} repeats an attempt"
                begun.add((step, attempt))
            case Completed(step, output) if StepPath(step).name != detour.name and output != PAID:
                completed[step] = output
            case _:
                pass
    done = [(effect.step, effect.attempt) for effect in effects]
    assert len(set(done)) == len(done), f"an attempt has two effects: {done}"
    assert set(done) <= begun, f"the journal does not know these effects: {set(done) - begun}"
    # Each step yields the number of its last attempt.
    assert completed.items() <= dict(done).items(), f"{completed} {done}"
    keys = {(effect.step, effect.key) for effect in effects}
    assert len(keys) == len({key for _, key in keys}) == len({step for step, _ in keys})


def check_received(plan: Plan, entries: Sequence[Entry]) -> None:
    """Check that a journey has received what was sent, once and in order."""
    received = [entry.key for entry in entries if isinstance(entry, Signalled)]
    sent = [f"{number}" for number in range(plan.legs.count("advice"))]
    if plan.ends is RunStatus.CANCELLED:
        assert received == sent[: len(received)], f"{plan} has received {received}"
    else:
        assert received == sent, f"{plan} has received {received}"


def check_unbooked(plan: Plan, entries: Sequence[Entry]) -> None:
    """Check that all bookings were undone, last first, unless the journey is complete."""
    arguments = {e.step: e.arguments for e in entries if isinstance(e, BeforeStep)}
    done = [StepPath(entry.step) for entry in entries if isinstance(entry, Completed)]
    booked, unbooked = (
        [arguments[path] for path in done if path.name == name] for name in ("book", "unbook")
    )
    assert unbooked == ([] if plan.ends is RunStatus.COMPLETED else booked[::-1])
