"""Plan a resume: replay the run, and change nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from effectflow.checkpoint.current_life import life_of
from effectflow.checkpoint.durable_fiber import DurableFiber
from effectflow.checkpoint.endings import Ending, FailedWith, Halted, Raised
from effectflow.checkpoint.entries import Ranges, Resumed
from effectflow.checkpoint.errors import RunCancelled
from effectflow.checkpoint.journal_reader import run_not_found
from effectflow.checkpoint.journal_writer import NoJournal
from effectflow.checkpoint.order import Order, read_order
from effectflow.checkpoint.plan import Planning, ResumePlan, skipped_steps
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.run_info import RunStatus
from effectflow.checkpoint.step import StepDefinition
from effectflow.effects.errors import Halt, Parked
from effectflow.effects.nodes import AnyEffect
from effectflow.effects.paths import is_within
from effectflow.runs.body import replay_body
from effectflow.runs.run_ids import check_run_id
from effectflow.runs.stored_run import Place, StoredRun, context_of, input_of, read_run


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a replay has ended.

    Attributes:
        plan: what a resume would do from there.
        steps: the definitions of the wanted steps that it has reached, by path.
        awaited: the types of the messages that it has come to wait for, by topic.
        undos: what the sagas would undo there, the next one first.
        void: the entries that are left out, so that failures are tried again.
    """

    plan: ResumePlan
    steps: Mapping[str, StepDefinition]
    awaited: Mapping[str, object]
    undos: tuple[str, ...]
    void: Ranges


async def plan_run(
    place: Place, run_id: str, *, effects: bool, is_check: bool = False
) -> ResumePlan:
    """Return what a resume would do. With `effects`, run all effects between steps.

    `is_check` says that only the code is checked: see `Planning`.
    """
    check_run_id(run_id)
    found = await read_run(place, run_id)
    if found is None:
        raise await run_not_found(place.checkpoints.store, run_id)
    known = found.checkpoint
    skip = skipped_steps(known)
    if known.status is RunStatus.COMPLETED:
        return ResumePlan(skip=skip, is_complete=True)
    if known.status is RunStatus.CANCELLED:
        return ResumePlan(skip=skip, problem=RunCancelled(run_id))
    return (await replay_to_frontier(place, found, effects=effects, is_check=is_check)).plan


async def awaited_types(place: Place, run_id: str, waits: Collection[str]) -> Mapping[str, object]:
    """Return the types of the messages that a run waits for, by topic. Change nothing.

    Parameters:
        waits: the paths of its waits, which may be within steps in progress.

    A topic is left out whose wait a replay does not reach without running effects. Raise what a resume
    would be rejected with.
    """
    return (await _reached(place, run_id, waits)).awaited


async def planned_undos(place: Place, run_id: str) -> tuple[str, ...]:
    """Return what the sagas of a run would undo if it was cancelled now, the next one first.

    Change nothing. Raise what a resume would be rejected with.
    """
    return (await _reached(place, run_id)).undos


async def _reached(place: Place, run_id: str, wanted: Collection[str] = ()) -> Reached:
    found = await read_run(place, run_id)
    if found is None:
        raise await run_not_found(place.checkpoints.store, run_id)
    now = [found.path_now(one) for one in wanted]
    reached = await replay_to_frontier(place, found, effects=False, wanted=now)
    if reached.plan.problem is not None:
        raise reached.plan.problem
    return reached


async def replay_to_frontier(
    place: Place,
    found: StoredRun,
    *,
    effects: bool,
    wanted: Collection[str] = (),
    is_check: bool = False,
) -> Reached:
    """Replay a run until a resume would begin something. Record nothing.

    Parameters:
        effects: whether to run all effects between steps.
        wanted: the paths of steps to look for. A failure that one of them has led to is tried again,
            even if a resume does not, so that the replay ends where the step is in progress.
        is_check: as in `Planning`.
    """
    blueprint, known = place.blueprint, found.checkpoint
    changed = blueprint.definition.changed_since(known.definition, known.run_id)
    if changed is not None:
        return Reached(ResumePlan(skip=skipped_steps(known), problem=changed), {}, {}, (), ())
    entries = found.journal.entries
    void = () if known.finished is None else known.finished.retry
    left_out = void
    input = input_of(known, blueprint)
    removed = blueprint.removed(found.written.entries)
    place = replace(place, scope=place.scope.copy())
    place.scope.is_planned = not effects
    while True:
        at = place.scope.clock.now().timestamp()
        entries = (*entries, Resumed("", at, void=void)) if void else entries
        planning = Planning(wanted, is_check=is_check)
        run = _run_to_plan(place, found, read_order(entries, removed), planning)
        ending = await _end_at_the_frontier(place, run, blueprint.body(input))
        has_failed = isinstance(ending, FailedWith | Raised) and not run.turns.is_over
        is_wanted = has_failed and _tries_wanted_again(run, wanted)
        void = run.retry()
        if not (is_wanted or (has_failed and run.is_tried_again())):
            return Reached(
                planning.plan(ending),
                planning.found,
                planning.awaited,
                tuple(planning.undos),
                left_out,
            )
        # The process died between the failure and the end of the run, so a resume tries it again.
        left_out = (*left_out, *void)


def _tries_wanted_again(run: Run, wanted: Collection[str]) -> bool:
    """Let the failures of the wanted steps be tried again. Return whether there are any."""
    found = [
        cause
        for cause in run.root.open_failures()
        if any(one == cause.step or is_within(one, cause.step) for one in wanted)
    ]
    for cause in found:
        cause.is_retryable = True
    return bool(found)


def _run_to_plan(place: Place, found: StoredRun, order: Order, planning: Planning) -> Run:
    return Run(
        found.checkpoint.run_id,
        found.checkpoint.workflow,
        place.checkpoints,
        writer=cast(Any, NoJournal()),
        order=order,
        types=place.blueprint.output_types,
        clock=place.scope.clock,
        context=context_of(found.started),
        started_version=found.started_version,
        known_entries=len(found.journal.entries),
        planning=planning,
    )


async def _end_at_the_frontier(place: Place, run: Run, body: AnyEffect) -> Ending | None:
    """Replay a run up to the frontier. Return how it ended; None if every fiber has reached that."""
    run.begin(DurableFiber(run))
    ending: Ending | None = None
    try:
        with run.stopping.flows, life_of(run.turns):
            ending = await run.stopping.supervised(lambda: replay_body(place, run, body))
    except Parked:
        pass
    except Halt as halt:
        if halt.reason is not run.writer.halted:
            raise
    except Exception as defect:
        ending = Raised(defect)
    if not run.turns.is_over:
        run.turns.replay.finish(ending.error if isinstance(ending, Raised) else None)
    return ending if run.writer.halted is None else Halted(run.writer.halted)
