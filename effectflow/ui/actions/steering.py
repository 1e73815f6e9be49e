"""Retry, cancel, pause, unpause and delete runs."""

from __future__ import annotations

from collections.abc import Iterator

from effectflow.checkpoint import ResumePlan, RunStatus
from effectflow.checkpoint.errors import (
    CheckpointError,
    OutcomeUnknown,
    RunNotFound,
    StoreUnavailable,
)
from effectflow.checkpoint.store import find_run
from effectflow.observe.explanation import Explanation
from effectflow.runs.control import pause_run, retry_run, unpause_run
from effectflow.runs.plan import plan_run, planned_undos
from effectflow.runs.retention import delete_run, may_be_awaited
from effectflow.service.sending import request_cancel
from effectflow.ui.actions.action import (
    Action,
    CodeRaises,
    Done,
    Fact,
    Link,
    Offer,
    Prepared,
    Target,
    listed,
    not_ended,
    only_if,
    told,
    warned,
)
from effectflow.ui.forms import Form
from effectflow.ui.site import Refused

_TO_RETRY = only_if(RunStatus.FAILED, RunStatus.BLOCKED, RunStatus.INTERRUPTED, RunStatus.RUNNING)

_TO_PAUSE = only_if(
    RunStatus.PENDING,
    RunStatus.RUNNING,
    RunStatus.SUSPENDED,
    RunStatus.INTERRUPTED,
    RunStatus.BLOCKED,
)


def _why_not_retry(explanation: Explanation) -> str:
    if explanation.is_held:
        return f"There is nothing to try again yet. {explanation.reason}"
    return _TO_RETRY(explanation)


async def _prepare_retry(target: Target) -> Prepared:
    error = target.explanation.error
    plan: ResumePlan | None = None
    facts: tuple[Fact, ...] = ()
    try:
        plan = await _plan(target)
    except (RunNotFound, StoreUnavailable):
        raise
    except CodeRaises as raised:
        facts = (warned("It would fail again", str(raised)),)
    except CheckpointError as problem:
        facts = (warned("It would be blocked again", str(problem)),)
    except Refused as unknown:
        facts = (told("What will run", f"A worker decides. {unknown}"),)
    if plan is not None:
        facts = tuple(facts_of(plan))
    if error and not (plan is not None and error == str(plan.problem)):
        facts = (told("Its last error", error), *facts)
    facts += (
        told("Who runs it", "The next worker continues the run. This page executes no steps."),
    )
    links = () if plan is None else tuple(_ways_on(plan, target))
    return Prepared(facts, (Offer(Form(), "Retry the run", seen=target.seen),), links)


async def _plan(target: Target) -> ResumePlan:
    """Return what a resume would do. Raise Refused without the code or its environment."""
    async with target.place() as place:
        return await plan_run(place, target.run_id, effects=False)


def facts_of(plan: ResumePlan) -> Iterator[Fact]:
    """Yield what a resume would do."""
    if plan.problem is not None:
        yield warned("It would be blocked again", str(plan.problem))
    yield from listed("Kept, and not run again", plan.skip)
    yield from listed("Runs again, because it has begun", plan.retry)
    yield from listed("Runs next", [one for one in plan.start if one not in plan.retry])
    yield from listed("Waits", plan.waiting)
    if plan.recurs:
        yield Fact(
            "Fails again with its recorded failure", plan.recurs, is_code=True, is_problem=True
        )
    if plan.unverified:
        texts = tuple(f"{one.step}: {one.reason}" for one in plan.unverified)
        yield Fact("Not known before it runs", texts)
    if plan.reason:
        yield told("What runs next is not known", plan.reason)


def _ways_on(plan: ResumePlan, target: Target) -> Iterator[Link]:
    """Yield what else helps if a resume would not get on."""
    steps = [*plan.recurs]
    if isinstance(plan.problem, OutcomeUnknown):
        steps += [one.step for one in target.explanation.unknown]
    for step in dict.fromkeys(steps):
        yield Link("complete-step", f"Give step {step} an output", (("step", step),))
        yield Link("fail-step", f"Let step {step} fail", (("step", step),))
        yield Link("fork", f"Fork the run at step {step}", (("at", step),))


async def _retry(target: Target, _: Form) -> Done:
    await retry_run(target.checkpoints, target.run_id, by=target.by, clock=target.site.clock)
    return Done("retry", target.run_id)


async def _prepare_cancel(target: Target) -> Prepared:
    explanation = target.explanation
    steps = [one.path for one in explanation.open if one.kind == "step"]
    waits = [one.path for one in explanation.open if one.kind == "wait"]
    facts = [
        told(
            "What happens",
            "The code of the run is cancelled where it is. Its finalizers run, its sagas undo what they "
            "have done, last first, and the run ends as cancelled. This cannot be taken back.",
        ),
        *listed("Steps in progress, which are interrupted", steps),
        *listed("Waits that end", waits),
    ]
    if target.has_code:
        facts += await _undos(target)
    who = (
        f"The {explanation.owner} carries it out."
        if explanation.is_held
        else "The next worker that takes the run carries it out."
    )
    facts.append(told("Who does it", who))
    return Prepared(tuple(facts), (Offer(Form(), "Cancel the run", is_final=True),))


async def _undos(target: Target) -> tuple[Fact, ...]:
    """Return what the sagas of a run would undo, or why that is not known."""
    try:
        async with target.place() as place:
            return listed("Its sagas undo", await planned_undos(place, target.run_id))
    except (RunNotFound, StoreUnavailable):
        raise
    except OutcomeUnknown as error:
        problem = (
            f"Step {error.step} is in progress and runs at most once: only its end tells."
            if target.explanation.is_held
            else str(error)
        )
    except (CheckpointError, Refused) as error:
        problem = str(error)
    return (warned("What its sagas undo is not known", problem),)


async def _cancel(target: Target, _: Form) -> Done:
    await request_cancel(target.checkpoints, target.run_id, by=target.by)
    return Done("cancel", target.run_id)


async def _prepare_pause(target: Target) -> Prepared:
    steps = [one.path for one in target.explanation.open if one.kind == "step"]
    return Prepared(
        (
            told(
                "What happens",
                "Nothing is interrupted: steps in progress end first, and nothing more begins. No worker "
                "continues the run before someone unpauses it.",
                "Meanwhile it receives messages, and its timers go on.",
            ),
            *listed("Steps in progress", steps),
        ),
        (Offer(Form(), "Pause the run"),),
    )


async def _pause(target: Target, _: Form) -> Done:
    await pause_run(target.checkpoints, target.run_id, by=target.by, clock=target.site.clock)
    return Done("pause", target.run_id)


async def _prepare_unpause(target: Target) -> Prepared:
    text = (
        "The next worker continues the run when it is due, and takes what has happened meanwhile."
    )
    return Prepared(
        (told("Why it is paused", target.explanation.reason), told("What happens", text)),
        (Offer(Form(), "Unpause the run"),),
    )


async def _unpause(target: Target, _: Form) -> Done:
    await unpause_run(target.checkpoints, target.run_id, by=target.by, clock=target.site.clock)
    return Done("unpause", target.run_id)


def _why_not_delete(explanation: Explanation) -> str:
    if explanation.is_held:
        return f"A run is not deleted while a process drives it. {explanation.reason}"
    return ""


async def _prepare_delete(target: Target) -> Prepared:
    async with target.checkpoints.store as store:
        info = await find_run(store, target.run_id)
        parent = "" if info is None else info.summary.parent
        if await may_be_awaited(store, parent):
            raise Refused(
                f"Run {parent!r}, which has spawned this one and may wait for its result, has not ended. "
                "Cancel or delete it first.",
                409,
            )
    facts = [
        told(
            "What happens",
            "The run is deleted, with its journal and its messages. This cannot be taken back.",
        )
    ]
    links: tuple[Link, ...] = ()
    status = target.explanation.status
    if not (status.has_ended or status is RunStatus.FAILED):
        text = "The run has not ended, and this undoes nothing. To undo its work, cancel it."
        facts.append(warned("Its work stays", text))
        links += (Link("cancel", "Cancel it instead"),)
    offer = Offer(Form(), "Delete the run", is_final=True, seen=target.seen)
    return Prepared(tuple(facts), (offer,), links)


async def _delete(target: Target, _: Form) -> Done:
    async with target.checkpoints.store:
        await delete_run(target.checkpoints, target.run_id)
    return Done("delete", "")


RETRY = Action("retry", "Retry", _why_not_retry, _prepare_retry, _retry)
PAUSE = Action("pause", "Pause", _TO_PAUSE, _prepare_pause, _pause)
UNPAUSE = Action("unpause", "Unpause", only_if(RunStatus.PAUSED), _prepare_unpause, _unpause)
CANCEL = Action("cancel", "Cancel", not_ended, _prepare_cancel, _cancel)
DELETE = Action("delete", "Delete", _why_not_delete, _prepare_delete, _delete)
