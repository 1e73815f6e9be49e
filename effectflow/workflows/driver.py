"""Drive a claimed run: replay and run its body, and record the end. Or only plan that."""

from __future__ import annotations

import math
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import anyio

from effectflow.checkpoint.cancellation import Cancellation
from effectflow.checkpoint.delayed_saves import save_request
from effectflow.checkpoint.entries import Finished, Resumed, Started, Suspended
from effectflow.checkpoint.errors import (
    CheckpointError,
    LeaseLost,
    OutcomeUnknown,
    RunCancelled,
)
from effectflow.checkpoint.failures import write_end, write_error
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.integrity import first_digest
from effectflow.checkpoint.journal_reader import run_not_found
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.lease_keeper import keep_lease
from effectflow.checkpoint.observers import RunResumed
from effectflow.checkpoint.plan import ResumePlan, plan_resume, skipped_steps
from effectflow.checkpoint.planned_run import PlannedRun
from effectflow.checkpoint.recording import Recording
from effectflow.checkpoint.replay import compressed, read_recording
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.stopping import interruption_reason
from effectflow.checkpoint.store import KeepsHistory, RunStatus, RunSummary, at_once
from effectflow.checkpoint.suspension import Drain, attended
from effectflow.effects import Halt
from effectflow.effects.errors import LeftToResume, Parked
from effectflow.effects.event_loop import is_cancellation, mark_as_cancelled, raise_stop
from effectflow.effects.interpreter import interpret, interpret_branch, raise_hidden_stop
from effectflow.effects.nodes import AnyEffect
from effectflow.effects.scope import Scope
from effectflow.effects.trails import TypedFailure
from effectflow.workflows.child_runs import cancel_spawned
from effectflow.workflows.claim import Claim
from effectflow.workflows.lookup import (
    Found,
    Place,
    context_of,
    defect_in,
    failure_in,
    find,
    input_digest,
    input_of,
    output_of,
    recording_of,
)
from effectflow.workflows.run_ids import check_run_id


@dataclass(frozen=True, slots=True)
class Reopening:
    """A request to retry or to drop dead letters of a run.

    Attributes:
        keys: the keys of their items; None for all.
        drops: whether they are dropped.
    """

    keys: frozenset[str] | None
    drops: bool

    def of(self, recording: Recording, resumed: Resumed) -> Resumed | None:
        """Return the entry with the chosen dead letters; None if there are none to retry or to drop.

        An unfinished reopening continues: items that failed again in it are not retried once more.
        """
        keys, reopened_at = self.keys, recording.reopened_at
        known = {letter.key for letter in recording.dead_letters.values()}
        unknown = sorted((keys or known) - known)
        if unknown:
            raise ValueError(
                f"the run has no dead letters with the keys {', '.join(map(repr, unknown))}"
            )
        chosen = [
            letter.sequence
            for letter in recording.open_dead_letters
            if (keys is None or letter.key in keys)
            and (reopened_at is None or letter.sequence < reopened_at)
        ]
        if not chosen:
            return None
        everything = sorted(letter.sequence for letter in recording.dead_letters.values())
        ranges = compressed(chosen, everything)
        return replace(resumed, dropped=ranges) if self.drops else replace(resumed, retried=ranges)


_CANCELLED: Final = object()
"""The outcome of a body that a message has cancelled."""


@dataclass(frozen=True, slots=True)
class Service:
    """How a worker drives runs.

    Attributes:
        drain: asks its runs to stop.
        suspend_after: a run is suspended when all of its flows wait for more than this many seconds.
        max_crashes: a run is not continued after this many processes in a row have died before it got
            further.
    """

    drain: Drain
    suspend_after: float
    max_crashes: int


async def begin_run(claim: Claim, started: Started, input: Any) -> Any:
    """Drive a new run. Return its output or `TypedFailure`."""
    run = _life_of(claim, started, Recording())
    return await _drive(claim, run, input, is_new=True)


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
    await claim.check_is_whole(known)
    if known.status is RunStatus.CANCELLED:
        raise RunCancelled(known.run_id)
    resumed = Resumed(
        claim.lease.owner, place.scope.clock.now().timestamp(), after_crash=claim.was_left
    )
    is_reopened = False
    if reopening is not None:
        reopened = reopening.of(read_recording(found.journal.entries), resumed)
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
    # The recording includes the entry that precedes everything that this life adds.
    recording = recording_of(found, blueprint, resumed)
    if is_reopened and recording.repeated and not force:
        raise OutcomeUnknown(known.run_id, recording.repeated[0], is_repeated=True)
    run = _life_of(claim, resumed, recording, found, force=force)
    if place.checkpoints.observers:
        start = plan_resume(known).start
        run.notify(RunResumed(known.run_id, start[0] if start else None))
    if service is not None:
        run.drain = service.drain
    return await _drive(claim, run, input, is_new=False, service=service)


async def give_up(claim: Claim, found: Found, error: CheckpointError) -> None:
    """Record that a run has failed with this error, without running it."""
    at = claim.place.scope.clock.now().timestamp()
    run = _life_of(
        claim, Resumed(claim.lease.owner, at), recording_of(found, claim.place.blueprint), found
    )
    record = write_error(error, claim.place.blueprint.output_types, is_defect=False)
    with suppress(Halt):
        await run.writer.finish(Finished(RunStatus.FAILED, at, None, record), RunStatus.FAILED)


def _life_of(
    claim: Claim,
    opening: Started | Resumed,
    recording: Recording,
    found: Found | None = None,
    *,
    force: bool = False,
) -> Run:
    """Return a run that begins with `opening`, or continues a journal that was found with it."""
    place, run_id = claim.place, claim.run_id
    checkpoints, newest = place.checkpoints, None
    if found is None:
        assert isinstance(opening, Started)
        started, length, digest = opening, 0, first_digest(run_id)
        version = started_version = started.version
    else:
        started, journal = found.started, found.journal
        length, digest = len(journal.entries), journal.digest
        version, started_version = found.checkpoint.definition.version, found.started_version
        newest = found.checkpoint.state
    # A check of the attribute, because a check of the protocol takes longer than the rest.
    if hasattr(checkpoints.store, "keep_history"):
        cast("KeepsHistory", checkpoints.store).keep_history(run_id, checkpoints.history)
    claim.input = started.input
    claim.writer = JournalWriter(
        run_id,
        checkpoints,
        lease=claim.lease,
        length=length,
        digest=digest,
        summary=_running(place, started, version, len(recording.open_dead_letters), opening.at),
        opening=opening,
        newest_step=None if newest is None else newest.step,
    )
    return Run(
        run_id,
        started.workflow,
        checkpoints,
        writer=claim.writer,
        recording=recording,
        types=place.blueprint.output_types,
        clock=place.scope.clock,
        context=context_of(started),
        started_version=started_version,
        force=force,
        around=place.around,
        outer_operators=place.scope.operators,
    )


def _running(
    place: Place, started: Started, version: str, dead_letters: int, begins_at: float
) -> RunSummary:
    """Return the summary of a run while it is driven by this version of the workflow."""
    around = place.around
    is_nested = started.is_nested or around is not None
    return RunSummary(
        started.workflow,
        started.kind,
        version,
        RunStatus.RUNNING,
        started.at,
        dead_letters,
        # Due at once, so that a worker takes it when its lease ends with this process.
        due_at=None if is_nested else at_once(begins_at),
        priority=started.priority,
        parent=started.parent if around is None else around.run.run_id,
        is_nested=is_nested,
    )


async def _drive(
    claim: Claim, run: Run, input: Any, *, is_new: bool, service: Service | None = None
) -> Any:
    """Run the body, and make its end durable before returning."""
    writer, stopping = run.writer, run.stopping
    request = save_request.get()
    if request is not None:
        request.cover(writer)
    try:
        with keep_lease(writer):
            outcome, raised = await _run_body(claim, run, input, is_new=is_new, service=service)
    except BaseException:
        await _record_interruption(run)
        raise
    # The scope of the flows has caught a cancellation: by the error that halted the run, by a worker that
    # suspends it, or by asyncio itself, if the scope mistook that for its own.
    is_cancelled = raised is not None and is_cancellation(raised)
    if writer.halted is not None:
        if is_cancelled or (isinstance(raised, Halt) and raised.reason is writer.halted):
            raised = None
    elif stopping.given_up is not None:
        outcome, raised = TypedFailure(stopping.given_up), None
    elif stopping.suspension is not None:
        await _record_interruption(run)
        return None
    if raised is not None and (is_cancelled or not isinstance(raised, Exception)):
        await _record_interruption(run)
        raise raised
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
    with stopping.flows:
        writer.on_halt = stopping.flows.cancel
        try:
            if is_new or (service is not None and claim.was_left):
                # So the journal shows how many processes in a row have died with this run.
                writer.open()
                await writer.save()
            body = place.blueprint.body(input)
            if is_new and run.around is None:
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
        except LeftToResume as left:
            if not run.is_shielded:
                # The run is being stopped.
                await raise_stop()
            # No cancellation reaches this run: it ends the finalizer that it is in.
            raised = left
        except BaseException as error:
            raised = error
            if is_cancellation(error):
                # The scope may uncancel the task, and then the cancellation would look stray.
                mark_as_cancelled(error)
                raise
    return outcome, raised


async def _replay(place: Place, run: Run, body: AnyEffect) -> Any:
    """Return the outcome of a body that an earlier life may have begun, or that a message may cancel.

    That is `_CANCELLED` if a message has cancelled the run.
    """
    scope = _scope_of_body(run, place.scope)
    flow = scope.flow
    assert isinstance(flow, DurableFlow)
    if run.around is not None:
        if run.cancelled_at is None or not run.around.is_in_step:
            return await _replay_nested(place, run, body, scope)
        # An earlier attempt of the step around it cancelled it. This one only completes that.
        scope.limit = math.inf
    operator = run.cancellation = Cancellation(flow, scope)
    # One that came before this life began cancels the body before it begins anything. Not within the
    # limit: if an earlier life was cancelled, nothing but the replay may wait there.
    await run.look_for_messages()
    with operator.cut:
        outcome = await interpret_branch(body, place.env, operator.inside)
        # What comes after the decision is discarded.
        if not operator.is_decided:
            return outcome
    if run.stopping.has_begun:
        await raise_hidden_stop(body, scope)
    if operator.unfinished is not None:
        raise operator.unfinished
    return _CANCELLED


async def _replay_nested(place: Place, run: Run, body: AnyEffect, scope: Scope) -> Any:
    """Return the outcome of the body of a nested run, which operators of its outer run may cancel."""
    around, cancelled_at = run.around, run.cancelled_at
    assert around is not None
    # The limit around it is a position in the journal of the outer run.
    scope.limit = math.inf if cancelled_at is None else cancelled_at

    async def work() -> Any:
        around.open_gate()
        return await interpret(body, place.env, scope)

    outcome = await scope.flow.run_branch(scope, work)
    if cancelled_at is not None:
        # What comes after the decision is discarded.
        await anyio.sleep_forever()
    return outcome


def _scope_of_body(run: Run, scope: Scope) -> Scope:
    """Return the scope of the body of a run. The operators around it may cancel it as well."""
    inside = scope.copy()
    # The run must not refer to it: without cycles, no garbage has to be collected.
    inside.flow = DurableFlow(run, "")
    inside.step = None
    inside.context = run.context
    inside.is_observing = inside.is_shielded = False
    inside.undos = None
    return inside


async def _record_end(claim: Claim, run: Run, outcome: Any, defect: Exception | None) -> None:
    place = claim.place
    types, version = place.blueprint.output_types, place.blueprint.definition.version
    if outcome is _CANCELLED:
        await _record_cancellation(run)
        return
    if defect is not None or isinstance(outcome, TypedFailure):
        error = write_end(outcome if defect is None else defect, types)
        finished = Finished(RunStatus.FAILED, run.now(), None, error)
        await run.writer.finish(finished, finished.status)
        return
    output = run.encode(outcome, "output", types, place.blueprint.output_type)
    digest = input_digest(claim.input)
    finished = Finished(RunStatus.COMPLETED, run.now(), output, None, run.run_id, version, digest)
    if await run.writer.finish(finished, finished.status, release=claim.is_preserved):
        claim.finished = finished


async def _record_cancellation(run: Run) -> None:
    finished = Finished(RunStatus.CANCELLED, run.now())
    await cancel_spawned(run)
    await run.writer.finish(finished, finished.status)


async def _record_interruption(run: Run) -> None:
    """Append `Interrupted`, or that the run was cancelled, as the last entry."""
    if run.writer.halted is not None:
        return
    with run.writer.last_saves(), suppress(Halt):
        with suppress(Halt):
            # If the outer run cannot settle its decision, this run is only interrupted.
            await run.cancel_if_decided()
        # A run that is being stopped as well has left finalizers to the resume.
        if run.cancelled_at is not None and not run.stopping.has_begun:
            await _record_cancellation(run)
        elif run.stopping.is_suspending and not _is_due_now(run):
            await _record_suspension(run)
        else:
            entry = run.interruption(interruption_reason())
            await run.writer.finish(entry, RunStatus.INTERRUPTED, due_at=at_once(run.now()))


def _is_due_now(run: Run) -> bool:
    """Return whether the run was ready to continue, and only stops because its worker does."""
    return run.stopping.suspension is not None and run.stopping.suspension.until <= run.now()


async def _record_suspension(run: Run) -> None:
    """Append `Suspended`. A message that the run has not read makes it due at once."""
    suspension = run.stopping.suspension
    if suspension is None:
        # A nested run continues with its outer run.
        waits_for, until, seen = "its outer run", math.inf, run.mailbox.seen
    else:
        waits_for, until, seen = suspension.waits_for, suspension.until, suspension.seen
    await run.writer.finish(
        Suspended(run.now()),
        RunStatus.SUSPENDED,
        due_at=None if math.isinf(until) else until,
        waits_for=waits_for,
        seen=seen,
    )


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
    run = PlannedRun(
        run_id,
        known.workflow,
        place.checkpoints,
        recording=recording_of(found, blueprint),
        types=blueprint.output_types,
        clock=scope.clock,
        context=context_of(found.started),
        started_version=found.started_version,
    )
    place = replace(place, scope=scope.copy())
    place.scope.is_planned = not effects
    input = input_of(known, blueprint)
    outcome: Any = None
    defect: Exception | None = None
    parked: Parked | None = None
    try:
        outcome = await _replay(place, run, blueprint.body(input))
    except Parked as ended:
        # Every flow has reported its next step.
        parked = ended
    except Halt as halt:
        if halt.reason is not run.writer.halted:
            raise
    except Exception as raised:
        defect = raised
    return run.plan(outcome, defect, parked)
