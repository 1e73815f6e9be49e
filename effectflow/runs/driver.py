"""Drive a claimed run: replay and run its body, and record the end. Or only plan that."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

import anyio

from effectflow.checkpoint.checkpoint import summary_of
from effectflow.checkpoint.delayed_saves import save_request
from effectflow.checkpoint.durable_fiber import DurableFiber
from effectflow.checkpoint.entries import Entry, Finished, Resumed, Started, Suspended
from effectflow.checkpoint.errors import (
    CheckpointError,
    LeaseLost,
    RunCancelled,
    RunEnded,
    RunNotFound,
)
from effectflow.checkpoint.failures import write_end, write_error
from effectflow.checkpoint.journal_reader import run_not_found
from effectflow.checkpoint.journal_writer import JournalWriter, NoJournal
from effectflow.checkpoint.lease_keeper import keep_lease
from effectflow.checkpoint.observers import CheckpointSaved, EntryAppended, RunResumed, tell
from effectflow.checkpoint.order import Order, read_order
from effectflow.checkpoint.plan import Planning, ResumePlan, plan_resume, skipped_steps
from effectflow.checkpoint.replay_filter import life_of
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.stopping import CutShort, Drain, GivenUp, Suspension, interruption_reason
from effectflow.checkpoint.store import (
    CANCEL,
    RunDetails,
    RunStatus,
    RunSummary,
    due_at_once,
    service_of,
    store_errors,
)
from effectflow.checkpoint.suspension import attended
from effectflow.effects import Halt
from effectflow.effects.errors import LeftToResume, Parked
from effectflow.effects.event_loop import (
    is_being_cancelled,
    is_cancellation,
    is_cancelled_by_scope,
    mark_as_cancelled,
    raise_caught_cancellation,
    raise_stop,
)
from effectflow.effects.interpreter import interpret, raise_hidden_stop
from effectflow.effects.nodes import AnyEffect
from effectflow.effects.scope import Operator, Scope
from effectflow.effects.trails import TypedFailure, log_hidden
from effectflow.runs.claim import Claim
from effectflow.runs.run_ids import check_run_id
from effectflow.runs.stored_run import (
    Found,
    Place,
    context_of,
    defect_in,
    failure_in,
    find,
    input_digest,
    input_of,
    output_of,
)

Reopening: TypeAlias = Callable[[tuple[Entry, ...], Order, Resumed], Resumed | None]
"""Chooses what a complete run tries again: returns the entry that says so, or None for nothing.

It receives the entries of the run, their order, and the entry to complete.
"""

_CANCELLED: Final = object()
"""The outcome of a body that a message has cancelled."""

_TRIED_AGAIN: Final = object()
"""The outcome of a life that has only met failures which a resume tries again.

The process died between them and the end of the run.
"""


@dataclass(frozen=True, slots=True)
class Service:
    """How a worker drives runs.

    Attributes:
        drain: asks its runs to stop.
        suspend_after: a run is suspended when all of its fibers wait for more than this many seconds.
        max_crashes: a run is not continued after this many processes in a row have died before it got
            further.
    """

    drain: Drain
    suspend_after: float
    max_crashes: int


async def begin_run(claim: Claim, started: Started, digest: bytes, input: Any) -> Any:
    """Drive a new run, whose first entry has this digest. Return its output or `TypedFailure`."""
    observers = claim.place.checkpoints.observers
    if observers:
        tell(observers, EntryAppended(claim.run_id, started))
        tell(observers, CheckpointSaved(claim.run_id, 1, None, None))
    run = _life_of(claim, started, digest, Order())
    try:
        return await _drive(claim, run, input, is_new=True)
    finally:
        run.let_go()


async def continue_run(
    claim: Claim,
    found: Found,
    *,
    force: bool = False,
    reopening: Reopening | None = None,
    service: Service | None = None,
) -> Any:
    """Continue a run at the end of its journal.

    Return its output or `TypedFailure`. With a service, return None if the run was suspended.
    """
    place, known = claim.place, found.checkpoint
    blueprint = place.blueprint
    claim.check_is_whole(known)
    if known.status is RunStatus.CANCELLED:
        raise RunCancelled(known.run_id)
    entries = found.journal.entries
    finished = known.finished
    resumed = Resumed(
        claim.lease.owner,
        place.scope.clock.now().timestamp(),
        # What the failure of the run came from is tried again.
        void=() if finished is None else finished.retry,
        after_crash=claim.was_left,
    )
    is_reopened = False
    if reopening is not None:
        reopened = reopening(entries, read_order(entries), resumed)
        is_reopened, resumed = reopened is not None, reopened or resumed
    completion = found.completion
    if completion is not None and not is_reopened:
        claim.finished = completion
        return output_of(completion, blueprint, known.run_id, force=force)
    definition = blueprint.definition
    changed = definition.changed_since(known.definition, known.run_id)
    if changed is not None and not force:
        raise changed
    input = input_of(known, blueprint, force=force)
    if found.was.fingerprint != definition.fingerprint:
        resumed = replace(
            resumed,
            version=definition.version,
            steps=definition.steps,
            structure=definition.structure,
        )
    removed = blueprint.removed(found.written.entries)
    entries = (*entries, resumed)
    # The order takes the entry into account that precedes everything that this life adds.
    order, digest = read_order(entries, removed), found.journal.digest
    run = _life_of(claim, resumed, digest, order, found, force=force)
    if place.checkpoints.observers:
        start = plan_resume(known).start
        run.notify(RunResumed(known.run_id, start[0] if start else None))
    if service is not None:
        run.drain = service.drain
    while True:
        outcome = await _drive(claim, run, input, is_new=False, service=service)
        if outcome is not _TRIED_AGAIN:
            return outcome
        void = run.retry()
        # What the resume has said stays, even if this life has added nothing else.
        run.writer.open()
        await run.writer.save()
        written = await find(place, known.run_id)
        assert written is not None
        resumed = Resumed(claim.lease.owner, run.now(), void=void)
        run.writer.begin_again(resumed)
        run = run.next_life(read_order((*written.journal.entries, resumed), removed))


async def give_up(claim: Claim, found: Found, error: CheckpointError) -> None:
    """Record that a run has failed with this error, without running it."""
    at = claim.place.scope.clock.now().timestamp()
    run = _life_of(claim, Resumed(claim.lease.owner, at), found.journal.digest, Order(), found)
    record = write_error(error, claim.place.blueprint.output_types, is_defect=False)
    with suppress(Halt):
        await run.writer.finish(Finished(RunStatus.FAILED, at, None, record), RunStatus.FAILED)


def _life_of(
    claim: Claim,
    opening: Started | Resumed,
    digest: bytes,
    order: Order,
    found: Found | None = None,
    *,
    force: bool = False,
) -> Run:
    """Return a run that has begun with `opening`, or continues a journal that was found with it.

    `digest` is that of the newest entry in the store.
    """
    place, run_id = claim.place, claim.run_id
    checkpoints, newest = place.checkpoints, None
    if found is None:
        assert isinstance(opening, Started)
        started, length = opening, 1
        version = started_version = started.version
    else:
        started, length = found.started, len(found.journal.entries)
        version, started_version = found.checkpoint.definition.version, found.started_version
        newest = found.checkpoint.state
    claim.input = started.input
    claim.writer = JournalWriter(
        run_id,
        checkpoints,
        lease=claim.lease,
        length=length,
        digest=digest,
        summary=running_summary(started, version, order.dead_letters, opening.at),
        opening=None if found is None else opening,
        newest_step=None if newest is None else newest.step,
    )
    return Run(
        run_id,
        started.workflow,
        checkpoints,
        writer=claim.writer,
        order=order,
        types=place.blueprint.output_types,
        clock=place.scope.clock,
        context=context_of(started),
        started_version=started_version,
        known_entries=0 if found is None else length,
        force=force,
    )


def running_summary(
    started: Started, version: str, dead_letters: int, begins_at: float
) -> RunSummary:
    """Return the summary of a run while it is driven by this version of the workflow."""
    details = RunDetails(started.kind, version, dead_letters)
    # Due at once, so that a worker takes it when its lease ends with this process.
    return summary_of(started, RunStatus.RUNNING, due_at=due_at_once(begins_at), details=details)


async def _drive(
    claim: Claim, run: Run, input: Any, *, is_new: bool, service: Service | None = None
) -> Any:
    """Run the body, and make its end durable before returning."""
    writer = run.writer
    run.begin(DurableFiber(run))
    request = save_request.get()
    if request is not None:
        request.cover(writer)
    try:
        with keep_lease(writer):
            outcome, raised = await _run_body(claim, run, input, is_new=is_new, service=service)
    except BaseException:
        await _record_interruption(run)
        raise
    if writer.halted is None and not run.turns.is_over:
        run.turns.replay.finish(raised)
    ending = run.ending
    # The scope of the fibers has caught a cancellation: by the error that halted the run, by a worker
    # that suspends it, or by asyncio itself, if the scope mistook that for its own.
    is_cancelled = raised is not None and is_cancellation(raised)
    if writer.halted is not None:
        if is_cancelled or (isinstance(raised, Halt) and raised.reason is writer.halted):
            raised = None
    elif isinstance(ending, CutShort):
        await _record_interruption(run)
        raise defect_in(run.run_id, ending.error)
    elif isinstance(ending, GivenUp):
        outcome, raised = TypedFailure(ending.error), None
    elif ending is not None:
        await _record_interruption(run)
        return None
    if raised is not None and (is_cancelled or not isinstance(raised, Exception)):
        await _record_interruption(run)
        raise raised
    is_stopped = run.turns.is_over and is_being_cancelled()
    if is_stopped and run.cut_off is not None and ending is None and writer.halted is None:
        # What the stop has cut off may have decided otherwise.
        await _record_interruption(run)
        await raise_caught_cancellation()
    try:
        return await _outcome_of(claim, run, outcome, raised)
    except BaseException as cut_off:
        if is_cancellation(cut_off) and not writer.is_ending:
            # Another save was in progress, so the end was not even added.
            await _record_interruption(run)
        raise


async def _outcome_of(claim: Claim, run: Run, outcome: Any, defect: Exception | None) -> Any:
    """Record the end of a run, and return its output or `TypedFailure`, or raise its defect."""
    writer = run.writer
    has_failed = defect is not None or outcome.__class__ is TypedFailure
    ended = outcome.error if isinstance(outcome, TypedFailure) else defect
    # A worker stops its runs by scopes only. An asyncio.TaskGroup may leave its task cancelled.
    may_be_stopped = run.drain is None or is_cancelled_by_scope()
    if has_failed and may_be_stopped and claim.place.scope.hides_stop(ended):
        await _record_interruption(run)
        await raise_caught_cancellation()
    if writer.halted is None and has_failed and run.is_tried_again():
        return _TRIED_AGAIN
    if writer.halted is None:
        with suppress(Halt):
            await _record_end(claim, run, outcome, defect)
    if writer.halted is not None:
        await writer.flush()
        if isinstance(writer.halted, LeaseLost) and defect is not None:
            writer.halted.add_note(f"the body ended in {defect!r} as well")
        return failure_in(run.run_id, TypedFailure(writer.halted))
    if defect is not None:
        raise defect_in(run.run_id, defect)
    if outcome is _CANCELLED:
        return TypedFailure(RunCancelled(run.run_id))
    return failure_in(run.run_id, outcome) if outcome.__class__ is TypedFailure else outcome


async def _run_body(
    claim: Claim, run: Run, input: Any, *, is_new: bool, service: Service | None
) -> tuple[Any, BaseException | None]:
    """Run the body in the cancel scope of the run. Raise a cancellation from outside.

    Return its value, a `TypedFailure` or `_CANCELLED`, and what it raised instead.
    """
    place, writer, stopping = claim.place, run.writer, run.stopping
    outcome: Any = None
    raised: BaseException | None = None
    with stopping.flows, life_of(run.turns):
        writer.on_halt = run.end_fibers
        try:
            if service is not None and claim.was_left:
                # So the journal shows how many processes in a row have died with this run.
                writer.open()
                await writer.save()
            body = place.blueprint.body(input)
            if is_new:
                outcome = await interpret(body, place.env, _scope_of_body(run, place.scope))
            else:

                async def replay() -> Any:
                    # A worker attends to the run meanwhile.
                    watch = (
                        nullcontext() if service is None else attended(run, service.suspend_after)
                    )
                    async with watch:
                        return await _replay(place, run, body)

                outcome = await stopping.supervised(replay)
        except LeftToResume:
            # The run is being stopped.
            await raise_stop()
        except BaseException as error:
            raised = error
            if is_cancellation(error):
                # The scope may uncancel the task, and then the cancellation would look stray.
                mark_as_cancelled(error)
                raise
    return outcome, raised


async def _replay(place: Place, run: Run, body: AnyEffect) -> Any:
    """Return the outcome of a body that an earlier life may have begun, or that a message may cancel.

    That is `_CANCELLED` if the run was cancelled.
    """
    scope = _scope_of_body(run, place.scope)
    operator = run.cancellation = Operator(scope, "")
    cut = operator.cut = anyio.CancelScope()
    await run.look_for_messages()
    run.turns.replay.take_cancellation()
    with cut:
        try:
            outcome = await interpret(body, place.env, operator.inside)
        except Exception as defect:
            run.turns.replay.take_cancellation()
            if not operator.is_decided:
                raise
            log_hidden(defect, "the body of a run failed after the run was cancelled")
        else:
            run.turns.replay.take_cancellation()
            # What comes after the cancellation is discarded.
            if not operator.is_decided:
                return outcome
    if run.turns.is_over:
        await raise_hidden_stop(body, scope)
    if operator.unfinished is not None:
        raise operator.unfinished
    return _CANCELLED


def _scope_of_body(run: Run, scope: Scope) -> Scope:
    """Return the scope of the body of a run."""
    inside = scope.copy()
    inside.fiber = run.root
    inside.operators = ()
    inside.step = None
    inside.context = run.context
    inside.is_shielded = False
    inside.undos = None
    return inside


async def _record_end(claim: Claim, run: Run, outcome: Any, defect: Exception | None) -> None:
    place = claim.place
    # So a replay of the whole journal goes the same way.
    run.release_all_held()
    types, version = place.blueprint.output_types, place.blueprint.definition.version
    if outcome is _CANCELLED:
        await _record_cancellation(run)
        return
    if defect is not None or isinstance(outcome, TypedFailure):
        error = write_end(outcome if defect is None else defect, types)
        finished = Finished(RunStatus.FAILED, run.now(), None, error, run.retry())
        await run.writer.finish(finished, finished.status)
        return
    output = run.encode(outcome, "output", types, place.blueprint.output_type)
    digest = input_digest(claim.input)
    finished = Finished(
        RunStatus.COMPLETED, run.now(), output, None, (), run.run_id, version, digest
    )
    if await run.writer.finish(finished, finished.status, release=claim.is_preserved):
        claim.finished = finished


async def _record_cancellation(run: Run) -> None:
    finished = Finished(RunStatus.CANCELLED, run.now())
    await _cancel_spawned(run)
    await run.writer.finish(finished, finished.status)


async def _cancel_spawned(run: Run) -> None:
    """Request the cancellation of all runs that a cancelled run has spawned."""
    for child in dict.fromkeys(run.spawned.values()):
        try:
            store = service_of(run.checkpoints.store, "a spawned run")
            with store_errors(store, child):
                await store.send(child, CANCEL, key=CANCEL)
        except (RunNotFound, RunEnded):
            continue
        except CheckpointError as error:
            raise run.halt(error) from error


async def _record_interruption(run: Run) -> None:
    """Append `Interrupted`, or `Suspended`, as the last entry."""
    if run.writer.halted is not None:
        return
    ending = run.ending
    with run.writer.last_saves(), suppress(Halt):
        # A run that was ready to continue only stops because its worker does.
        if isinstance(ending, Suspension) and ending.until > run.now():
            run.release_all_held()
            await run.writer.finish(
                Suspended(run.now()),
                RunStatus.SUSPENDED,
                due_at=None if math.isinf(ending.until) else ending.until,
                waits_for=ending.waits_for,
                # A message that the run has not read makes it due at once.
                seen=ending.seen,
            )
        else:
            reason = "defect" if isinstance(ending, CutShort) else interruption_reason()
            entry = run.interruption(reason)
            await run.writer.finish(entry, RunStatus.INTERRUPTED, due_at=due_at_once(run.now()))


async def plan_run(place: Place, run_id: str, *, effects: bool) -> ResumePlan:
    """Return what a resume would do: replay the run, and change nothing."""
    check_run_id(run_id)
    found = await find(place, run_id)
    if found is None:
        raise await run_not_found(place.checkpoints.store, run_id)
    blueprint, known, scope = place.blueprint, found.checkpoint, place.scope
    skip = skipped_steps(known)
    if known.status is RunStatus.COMPLETED:
        return ResumePlan(skip=skip, is_complete=True)
    if known.status is RunStatus.CANCELLED:
        return ResumePlan(skip=skip, problem=RunCancelled(run_id))
    changed = blueprint.definition.changed_since(known.definition, run_id)
    if changed is not None:
        return ResumePlan(skip=skip, problem=changed)
    entries = found.journal.entries
    finished = known.finished
    void = () if finished is None else finished.retry
    input = input_of(known, blueprint)
    while True:
        at = scope.clock.now().timestamp()
        entries = (*entries, Resumed("", at, void=void)) if void else entries
        removed = blueprint.removed(found.written.entries)
        run = _plan_of(place, found, read_order(entries, removed))
        plan, has_failed = await _end_of_plan(place, run, blueprint.body(input), effects=effects)
        void = run.retry()
        if not has_failed or run.turns.is_over or not run.is_tried_again():
            return plan
        # The process died between the failure and the end of the run, so a resume tries it again.


def _plan_of(place: Place, found: Found, order: Order) -> Run:
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
        planning=Planning(),
    )


async def _end_of_plan(
    place: Place, run: Run, body: AnyEffect, *, effects: bool
) -> tuple[ResumePlan, bool]:
    """Replay a run up to the frontier. Return what a resume does there, and whether the run fails."""
    assert run.planning is not None
    run.begin(DurableFiber(run))
    place = replace(place, scope=place.scope.copy())
    place.scope.is_planned = not effects
    outcome: Any = None
    defect: Exception | None = None
    try:
        with run.stopping.flows, life_of(run.turns):
            outcome = await run.stopping.supervised(lambda: _replay(place, run, body))
    except Parked:
        # Every fiber has reached the frontier.
        pass
    except Halt as halt:
        if halt.reason is not run.writer.halted:
            raise
    except Exception as raised:
        defect = raised
    if not run.turns.is_over:
        run.turns.replay.finish(defect)
    has_failed = defect is not None or isinstance(outcome, TypedFailure)
    return run.planning.plan(outcome, defect, run.writer.halted), has_failed
