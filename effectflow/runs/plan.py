"""Plan a resume: replay the run, and change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from effectflow.checkpoint.current_life import life_of
from effectflow.checkpoint.durable_fiber import DurableFiber
from effectflow.checkpoint.endings import Ending, FailedWith, Halted, Raised
from effectflow.checkpoint.entries import Resumed
from effectflow.checkpoint.errors import RunCancelled
from effectflow.checkpoint.journal_reader import run_not_found
from effectflow.checkpoint.journal_writer import NoJournal
from effectflow.checkpoint.order import Order, read_order
from effectflow.checkpoint.plan import Planning, ResumePlan, skipped_steps
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.store import RunStatus
from effectflow.effects.errors import Halt, Parked
from effectflow.effects.nodes import AnyEffect
from effectflow.runs.body import replay_body
from effectflow.runs.run_ids import check_run_id
from effectflow.runs.stored_run import Place, StoredRun, context_of, input_of, read_run


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
    blueprint, known = place.blueprint, found.checkpoint
    skip = skipped_steps(known)
    if known.status is RunStatus.COMPLETED:
        return ResumePlan(skip=skip, is_complete=True)
    if known.status is RunStatus.CANCELLED:
        return ResumePlan(skip=skip, problem=RunCancelled(run_id))
    changed = blueprint.definition.changed_since(known.definition, run_id)
    if changed is not None:
        return ResumePlan(skip=skip, problem=changed)
    entries = found.journal.entries
    void = () if known.finished is None else known.finished.retry
    input = input_of(known, blueprint)
    removed = blueprint.removed(found.written.entries)
    place = replace(place, scope=place.scope.copy())
    place.scope.is_planned = not effects
    while True:
        at = place.scope.clock.now().timestamp()
        entries = (*entries, Resumed("", at, void=void)) if void else entries
        planning = Planning(is_check=is_check)
        run = _run_to_plan(place, found, read_order(entries, removed), planning)
        ending = await _end_at_the_frontier(place, run, blueprint.body(input))
        void = run.retry()
        has_failed = isinstance(ending, FailedWith | Raised)
        if not has_failed or run.turns.is_over or not run.is_tried_again():
            return planning.plan(ending)
        # The process died between the failure and the end of the run, so a resume tries it again.


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
