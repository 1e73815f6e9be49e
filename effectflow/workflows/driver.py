"""Drive one run of a workflow: claim it, replay and run its body, and record the end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from os import urandom
from typing import Any

import anyio

from effectflow.checkpoint.delayed_saves import save_request
from effectflow.checkpoint.entries import FORMAT, Entry, Finished, Resumed, Started
from effectflow.checkpoint.errors import (
    LeaseLost,
    OutcomeUnknown,
    RunBusy,
    RunCancelled,
    RunNotEnded,
)
from effectflow.checkpoint.failures import write_error
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.journal_reader import (
    run_not_found,
)
from effectflow.checkpoint.lease_keeper import keep_lease
from effectflow.checkpoint.observers import RunResumed
from effectflow.checkpoint.plan import ResumePlan, plan_resume
from effectflow.checkpoint.planned_run import PlannedRun
from effectflow.checkpoint.replay import Recording, compressed, read_recording
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.step import interruption_reason
from effectflow.checkpoint.store import RunStatus
from effectflow.checkpoint.values import (
    KnownTypes,
    to_tree,
)
from effectflow.effects import Halt
from effectflow.effects.errors import LeftToResume, Parked
from effectflow.effects.event_loop import is_cancellation, mark_as_cancelled
from effectflow.effects.interpreter import interpret
from effectflow.effects.nodes import Failed
from effectflow.effects.scope import Scope
from effectflow.workflows.claim import Claim
from effectflow.workflows.lookup import (
    Found,
    GivenInput,
    Place,
    check_run_id,
    completion_of,
    context_of,
    defect_in,
    failure_in,
    failure_of,
    find,
    input_of,
    last_completion,
    look,
    output_of,
    recording_of,
)


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

        A reopening that did not come to an end continues: what failed again in it is not retried again.
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


_NO_TYPES = KnownTypes.of()


def new_run_id(workflow: str) -> str:
    """Return a random id for a run."""
    return f"{workflow}-{urandom(6).hex()}"


async def start_run(
    place: Place,
    input: object,
    *,
    run_id: str,
    is_new: bool,
    context: Mapping[str, object],
    retry_failed: bool,
) -> Any:
    """Return the output or `Failed` of a new run, or of an existing run with this id and input."""
    blueprint = place.blueprint
    types = blueprint.input_types
    given = GivenInput(to_tree(input, path="input: $", types=types), types)
    context_tree = to_tree(dict(context), path="context: $", types=_NO_TYPES) if context else {}
    claim = Claim(place, run_id)
    info = None if is_new else await look(place, run_id)
    if info is not None and (completion := await completion_of(place, info, given)) is not None:
        return await claim.deliver(completion)
    try:
        await claim.begin()
    except RunBusy:
        found = None if is_new else await find(place, run_id)
        completion = None if found is None else last_completion(found, given)
        if completion is None:
            raise
        return output_of(completion, blueprint, run_id)
    async with claim:
        found = None if is_new else await find(place, run_id)
        if found is not None:
            if (completion := last_completion(found, given)) is not None:
                claim.finished = found.completion
                return output_of(completion, blueprint, run_id)
            if not retry_failed and found.checkpoint.status is RunStatus.FAILED:
                return failure_of(found, blueprint)
            return await _continue(place, found, claim, force=False)
        if (completion := claim.deleted_meanwhile(given)) is not None:
            return output_of(completion, blueprint, run_id)
        if info is not None:
            owner = "another start" if info.lease is None else info.lease.owner
            raise RunBusy(run_id, owner, 0.0, is_gone=True)
        blueprint.check_types(input)
        definition = blueprint.definition
        started = Started(
            run_id=run_id,
            workflow=definition.name,
            kind=definition.kind,
            version=definition.version,
            fingerprint=definition.fingerprint,
            steps=definition.steps,
            input=given.tree,
            context=context_tree,
            format=FORMAT,
            at=place.scope.clock.now().timestamp(),
            structure=definition.structure,
            module=blueprint.module,
        )
        run = claim.run(started, Recording())
        return await _drive(claim, run, input, is_new=True)


async def resume_run(
    place: Place, *, run_id: str, force: bool, reopening: Reopening | None = None
) -> Any:
    """Return the output or `Failed` of a resumed run."""
    claim = Claim(place, run_id)
    info = await look(place, run_id)
    if info is None:
        raise await run_not_found(place.checkpoints.store, run_id)
    if reopening is None and (completion := await completion_of(place, info)) is not None:
        return await claim.deliver(completion, force=force)
    await claim.begin()
    async with claim:
        found = await find(place, run_id)
        if found is not None:
            return await _continue(place, found, claim, force=force, reopening=reopening)
        if (completion := claim.deleted_meanwhile()) is not None:
            return output_of(completion, place.blueprint, run_id)
        raise await run_not_found(place.checkpoints.store, run_id)


async def read_result(place: Place, run_id: str) -> Any:
    """Return the recorded output or `Failed` of a run that has ended. Change nothing."""
    info = await look(place, run_id)
    if info is not None and (completion := await completion_of(place, info)) is not None:
        return output_of(completion, place.blueprint, run_id)
    found = None if info is None else await find(place, run_id)
    if found is None:
        raise await run_not_found(place.checkpoints.store, run_id)
    if (completion := last_completion(found)) is not None:
        return output_of(completion, place.blueprint, run_id)
    status = found.checkpoint.status
    if status is RunStatus.CANCELLED:
        raise RunCancelled(run_id)
    if status is not RunStatus.FAILED:
        raise RunNotEnded(run_id, status)
    return failure_of(found, place.blueprint)


async def plan_run(place: Place, run_id: str, *, effects: bool) -> ResumePlan:
    """Return what a resume would do: replay the run, and change nothing."""
    check_run_id(run_id)
    found = await find(place, run_id)
    if found is None:
        raise await run_not_found(place.checkpoints.store, run_id)
    blueprint, known, scope = place.blueprint, found.checkpoint, place.scope
    skip = tuple(step.step for step in known.completed_steps)
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
    body = DurableFlow(run, "")
    inside = _scope_of_body(body, scope)
    inside.forbidden = run.forbidden(effects=effects)
    input = input_of(known, blueprint)
    outcome: Any = None
    defect: Exception | None = None
    async with run.tasks:
        try:
            outcome = await interpret(blueprint.body(input), place.env, inside)
            body.end()
        except Parked as parked:
            run.park(body, parked)
        except Halt as halt:
            if halt.reason is not run.writer.halted:
                raise
        except Exception as raised:
            # Kept from the task group, which would wrap it.
            defect = raised
    return run.plan(outcome, defect)


async def _continue(
    place: Place,
    found: Found,
    claim: Claim,
    *,
    force: bool,
    reopening: Reopening | None = None,
) -> Any:
    """Continue a run at the end of its journal."""
    blueprint, known = place.blueprint, found.checkpoint
    await claim.check_is_whole(known)
    if known.status is RunStatus.CANCELLED:
        raise RunCancelled(known.run_id)
    resumed = Resumed(claim.lease.owner, place.scope.clock.now().timestamp())
    if reopening is not None:
        reopened = reopening.of(read_recording(found.journal.entries), resumed)
        reopening, resumed = (None, resumed) if reopened is None else (reopening, reopened)
    completion = found.completion
    if completion is not None and reopening is None:
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
    if reopening is not None and recording.repeated and not force:
        raise OutcomeUnknown(known.run_id, recording.repeated[0], is_repeated=True)
    run = claim.run(resumed, recording, found, force=force)
    if place.checkpoints.observers:
        start = plan_resume(known).start
        run.notify(RunResumed(known.run_id, start[0] if start else None))
    return await _drive(claim, run, input, is_new=False)


async def _drive(claim: Claim, run: Run, input: Any, *, is_new: bool) -> Any:
    """Run the body, and make its end durable before returning."""
    place, writer = claim.place, run.writer
    scope = place.scope
    request = save_request.get()
    if request is not None:
        request.cover(writer)
    ended: BaseException | None = None
    interrupted: BaseException | None = None
    outcome: Any = None
    try:
        with keep_lease(writer):
            async with run.tasks:
                writer.on_halt = run.tasks.cancel_scope.cancel
                try:
                    if is_new:
                        # Nothing runs before the run itself is durable.
                        writer.open()
                        await writer.save()
                    # The run must not refer to it: without cycles, no garbage has to be collected.
                    flow = DurableFlow(run, "")
                    inside = _scope_of_body(flow, scope)
                    outcome = await interpret(place.blueprint.body(input), place.env, inside)
                    flow.end()
                except LeftToResume:
                    # The run is being stopped. This wait raises its cancellation.
                    await anyio.sleep_forever()
                except BaseException as raised:
                    if is_cancellation(raised):
                        interrupted = raised
                        # The task group uncancels the task, and then the cancellation would look stray.
                        mark_as_cancelled(raised)
                        raise
                    # Not raised here, because the task group would wrap it.
                    ended = raised
    except BaseException:
        await _record_interruption(run)
        raise
    if interrupted is not None and writer.halted is None:
        # asyncio itself cancelled the run, and the task group mistook that for its own cancellation.
        await _record_interruption(run)
        raise interrupted
    if isinstance(ended, Halt) and ended.reason is writer.halted:
        ended = None
    elif ended is not None and not isinstance(ended, Exception):
        await _record_interruption(run)
        raise ended
    if writer.halted is None:
        with suppress(Halt):
            await _record_end(claim, run, outcome, ended)
    if writer.halted is not None:
        await writer.flush()
        if isinstance(writer.halted, LeaseLost) and ended is not None:
            writer.halted.add_note(f"the body ended in {ended!r} as well")
        outcome = Failed(writer.halted)
    elif ended is not None:
        raise defect_in(run.run_id, ended)
    return failure_in(run.run_id, outcome) if outcome.__class__ is Failed else outcome


def _scope_of_body(flow: DurableFlow, scope: Scope) -> Scope:
    """Return the scope of the body of a run. The operators around it may cancel it as well."""
    inside = scope.copy()
    inside.flow = flow
    inside.step = None
    inside.context = flow.run.context
    inside.is_observing = inside.is_shielded = False
    return inside


async def _record_end(claim: Claim, run: Run, outcome: Any, defect: BaseException | None) -> None:
    place = claim.place
    types, version = place.blueprint.output_types, place.blueprint.definition.version
    failed = outcome.__class__ is Failed
    if defect is not None or failed:
        error = write_error(
            defect if defect is not None else outcome.error, types, is_defect=defect is not None
        )
        finished = Finished(RunStatus.FAILED, run.now(), None, error)
        await run.writer.finish(finished, finished.status)
        return
    output = run.encode(outcome, "output", types, place.blueprint.output_type)
    assert claim.input is not None
    digest = claim.input.digest
    finished = Finished(RunStatus.COMPLETED, run.now(), output, None, run.run_id, version, digest)
    if await run.writer.finish(finished, finished.status, release=place.is_preserved):
        claim.finished = finished


async def _record_interruption(run: Run) -> None:
    """Append `Interrupted`, or that the run was cancelled, as the last entry."""
    if run.writer.halted is not None:
        return
    with run.writer.last_saves(), suppress(Halt):
        with suppress(Halt):
            # If the outer run cannot settle its decision, this run is only interrupted.
            await run.cancel_if_decided()
        status: RunStatus = RunStatus.INTERRUPTED
        entry: Entry | None = run.interruption(interruption_reason())
        if run.cancelled_at is not None:
            status = RunStatus.CANCELLED
            entry = Finished(status, run.now())
        await run.writer.finish(entry, status)
