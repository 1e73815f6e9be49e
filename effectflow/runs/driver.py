"""Drive a claimed run through one life: replay and run its body, and record how that ended."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

from effectflow.checkpoint.checkpoint import summary_of
from effectflow.checkpoint.delayed_saves import save_request
from effectflow.checkpoint.durable_fiber import DurableFiber
from effectflow.checkpoint.endings import (
    Cancelled,
    CarriedOn,
    CutShort,
    Ending,
    FailedWith,
    Halted,
    PausedBy,
    Raised,
    Returned,
    Suspension,
)
from effectflow.checkpoint.entries import Finished, Paused, Resumed, Started, Suspended
from effectflow.checkpoint.errors import (
    CheckpointError,
    DefinitionChanged,
    LeaseLost,
    NotSerializable,
    RunCancelled,
    RunEnded,
    RunNotFound,
    RunPaused,
)
from effectflow.checkpoint.failures import write_end, write_error
from effectflow.checkpoint.journal_reader import pass_over
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.lease_keeper import keep_lease
from effectflow.checkpoint.messages import cancel_request
from effectflow.checkpoint.observers import (
    NOT_OBSERVED,
    CheckpointSaved,
    EntryAppended,
    LifeBegan,
    LifeEnded,
    RunResumed,
    Surroundings,
    surrounding,
    tell,
)
from effectflow.checkpoint.order import Order, read_order
from effectflow.checkpoint.plan import resumed_at
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.run_info import RunDetails, RunStatus, RunSummary, due_at_once
from effectflow.checkpoint.shared_parts import SharedParts
from effectflow.checkpoint.stopping import interruption_reason
from effectflow.checkpoint.store import CANCEL, PAUSE, service_of, store_errors
from effectflow.effects import Halt
from effectflow.effects.event_loop import (
    is_being_cancelled,
    is_cancellation,
    is_cancelled_by_scope,
    raise_caught_cancellation,
)
from effectflow.effects.scope import Scope
from effectflow.effects.trails import TypedFailure, add_note
from effectflow.runs.blueprint import Blueprint
from effectflow.runs.body import run_body
from effectflow.runs.claim import Claim
from effectflow.runs.driven_runs import DrivenRuns
from effectflow.runs.reopening import Reopening
from effectflow.runs.stored_run import (
    StoredRun,
    context_of,
    defect_in,
    failure_in,
    input_digest,
    input_of,
    output_of,
    read_run,
)


@dataclass(frozen=True, slots=True)
class Service:
    """How a worker drives runs.

    Attributes:
        runs: the runs that it drives.
        suspend_after: a run is suspended when all of its fibers wait for more than this many seconds.
        max_crashes: a run is not continued after this many processes in a row have died before it got
            further.
        versions: the versions of runs that it takes, by workflow; for others, those that it continues.
        is_alone: whether this run is driven alone until it gets further.
    """

    runs: DrivenRuns
    suspend_after: float
    max_crashes: int
    versions: Mapping[str, Collection[str]] = field(default_factory=dict[str, Any])
    is_alone: bool = False

    def misfit(self, blueprint: Blueprint, version: str, run_id: str) -> DefinitionChanged | None:
        """Return why a run of this version is left to other workers; None if it is not."""
        name = blueprint.definition.name
        chosen = self.versions.get(name)
        if version in chosen if chosen is not None else blueprint.continues(version):
            return None
        takes = ", ".join(map(repr, chosen or [blueprint.definition.version]))
        detail = f"the run is of version {version!r}, and this worker takes {takes}"
        return DefinitionChanged(run_id, name, detail=detail)

    def joined(self, run: Run) -> AbstractAsyncContextManager[None]:
        """Wait until a run may be driven. The block drives it."""
        return self.runs.joined(run, alone=self.is_alone)


async def begin_run(claim: Claim, started: Started, digest: bytes, input: Any) -> Ending:
    """Drive a new run, whose first entry has this digest. Return how it ended.

    Call it in the `Surroundings` of the life.
    """
    observers = claim.place.checkpoints.observers
    if observers:
        tell(observers, EntryAppended(claim.run_id, started))
        tell(observers, CheckpointSaved(claim.run_id, 1, None, None))
    run = _life_of(claim, started, digest, Order())
    try:
        with keep_lease(run.writer, run.requests.listen):
            return await _drive(claim, run, input, (), None, is_new=True)
    finally:
        _tell_end(claim)
        run.let_go()


async def continue_run(
    claim: Claim,
    found: StoredRun,
    *,
    force: bool = False,
    reopening: Reopening | None = None,
    service: Service | None = None,
) -> Ending:
    """Continue a run at the end of its journal, and return how it ended.

    Only with a service, that may be a `Suspension`.
    """
    place, known = claim.place, found.checkpoint
    blueprint = place.blueprint
    claim.check_is_whole(known)
    if known.status is RunStatus.CANCELLED:
        return Cancelled()
    entries = found.journal.entries
    resumed = Resumed(
        claim.lease.owner,
        place.scope.clock.now().timestamp(),
        # What the failure of the run came from is tried again.
        void=() if known.finished is None else known.finished.retry,
        after_crash=claim.was_left,
    )
    reopened = None
    if reopening is not None:
        reopened = reopening.reopened(entries, read_order(entries), resumed)
    if found.completion is not None and reopened is None:
        claim.finished = found.completion
        output = output_of(found.completion, blueprint, known.run_id, force=force)
        return Returned(output)
    definition = blueprint.definition
    changed = definition.changed_since(known.definition, known.run_id)
    if changed is not None and not force:
        raise changed
    input = input_of(known, blueprint, force=force)
    resumed = found.continued_by(reopened or resumed, definition)
    removed = blueprint.removed(found.written.entries)
    # The order takes the entry into account that precedes everything that this life adds.
    order = await pass_over(entries, lambda: read_order((*entries, resumed), removed))
    digest = found.journal.digest
    observers = place.checkpoints.observers
    around: AbstractContextManager[Mapping[str, str]] = NOT_OBSERVED
    if observers:
        life = _resumed_life(claim, found, resumed, is_taken=service is not None)
        tell(observers, life)
        around = Surroundings(surrounding(observers), life)
    with around as kept:
        if kept:
            resumed = replace(resumed, kept=dict(kept))
        run = _life_of(claim, resumed, digest, order, found, force=force)
        run.mailbox.is_known_empty = claim.has_no_message
        if observers:
            run.notify(RunResumed(known.run_id, resumed_at(known)))
        try:
            with keep_lease(run.writer, run.requests.listen if service is None else None):
                async with nullcontext() if service is None else service.joined(run):
                    return await _drive(claim, run, input, removed, service)
        finally:
            _tell_end(claim)


def _resumed_life(claim: Claim, found: StoredRun, resumed: Resumed, *, is_taken: bool) -> LifeBegan:
    """Return the event that a run is continued. `is_taken` says whether a worker has taken it."""
    opened = (one for one in reversed(found.journal.entries) if isinstance(one, Started | Resumed))
    # Those who change a run keep nothing.
    before = next((one.kept for one in opened if one.kept), None)
    return LifeBegan(
        claim.run_id,
        found.started.workflow,
        context_of(found.started),
        cast("dict[str, str]", before or {}),
        claim.lease.owner,
        claim.waited(resumed.at) if is_taken else None,
        claim.was_left,
        claim.is_secret,
    )


def _tell_end(claim: Claim) -> None:
    writer = claim.writer
    assert writer is not None
    if writer.observers:
        summary = writer.summary
        tell(writer.observers, LifeEnded(claim.run_id, summary.workflow, summary.status))


async def _drive(
    claim: Claim,
    run: Run,
    input: Any,
    removed: tuple[int, ...],
    service: Service | None,
    *,
    is_new: bool = False,
) -> Ending:
    """Drive a run until a life ends in a way that no other life of this process makes up for."""
    while True:
        ending = await _live(claim, run, input, is_new=is_new, service=service)
        # An earlier life met this failure, and its process died before the end of the run.
        is_tried_again = isinstance(ending, FailedWith | Raised) and run.is_tried_again()
        if not (is_tried_again or isinstance(ending, CarriedOn)):
            return await _record(claim, run, ending)
        is_new, void = False, run.retry() if is_tried_again else ()
        # What the resume has said stays, even if this life has added nothing else.
        run.writer.open()
        try:
            await run.writer.save()
        except Halt:
            return _halted(run, ending)
        written = await read_run(claim.place, run.run_id)
        assert written is not None
        resumed = Resumed(claim.lease.owner, run.now(), void=void)
        run.writer.begin_again(resumed)
        run = run.next_life(read_order((*written.journal.entries, resumed), removed))
        if service is None:
            run.requests.listen()


def outcome_of(run_id: str, ending: Ending) -> Any:
    """Return the output or `TypedFailure` of a run that has ended in this way, or raise its defect."""
    match ending:
        case Returned(output):
            return output
        case FailedWith(failure):
            return failure_in(run_id, failure)
        case Halted(error):
            return failure_in(run_id, TypedFailure(error))
        case Cancelled():
            return TypedFailure(RunCancelled(run_id))
        case PausedBy(by):
            return TypedFailure(RunPaused(run_id, by))
        case Raised(error) | CutShort(error):
            raise defect_in(run_id, error)
        case Suspension() | CarriedOn():
            raise AssertionError(f"run {run_id!r} has not ended: {ending!r}")


async def record_failure(claim: Claim, found: StoredRun, error: CheckpointError) -> None:
    """Record that a run has failed with this error, without running it."""
    at = claim.place.scope.clock.now().timestamp()
    order, resumed = read_order(found.journal.entries), Resumed(claim.lease.owner, at)
    run = _life_of(claim, resumed, found.journal.digest, order, found)
    record = write_error(error, claim.place.blueprint.output_types, is_defect=False)
    with suppress(Halt):
        await run.writer.finish(Finished(RunStatus.FAILED, at, None, record), RunStatus.FAILED)
    _tell_end(claim)


def _life_of(
    claim: Claim,
    opening: Started | Resumed,
    digest: bytes,
    order: Order,
    found: StoredRun | None = None,
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
        started = recorded = opening
        length = 1
        version = started_version = started.version
    else:
        started, length = found.started, len(found.journal.entries)
        # The store keeps the name that is recorded.
        recorded = found.written.started
        version, started_version = found.checkpoint.definition.version, found.started_version
        newest = found.checkpoint.state
    claim.input = started.input
    claim.writer = JournalWriter(
        run_id,
        checkpoints,
        lease=claim.lease,
        length=length,
        digest=digest,
        summary=running_summary(recorded, version, order.dead_letters, opening.at),
        opening=None if found is None else opening,
        newest_step=None if newest is None else newest.step,
        shared=SharedParts(() if found is None else found.written.entries),
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


async def _live(
    claim: Claim, run: Run, input: Any, *, is_new: bool, service: Service | None
) -> Ending:
    """Run the body in one life of a run, and return how that ended. Record and raise an interruption."""
    writer = run.writer
    run.begin(DurableFiber(run))
    request = save_request.get()
    if request is not None:
        request.cover(writer)
    try:
        ending = await run_body(
            claim.place,
            run,
            input,
            is_new=is_new,
            # So the journal shows how many processes in a row have died with this run.
            opens=service is not None and claim.was_left,
            suspend_after=None if service is None else service.suspend_after,
        )
        if writer.halted is None and not run.turns.is_over:
            run.turns.replay.finish(ending.error if isinstance(ending, Raised) else None)
        await _raise_interruption(run, claim.place.scope, ending)
    except BaseException as interruption:
        await _record_interruption(run)
        if service is None:
            add_note(
                interruption,
                f"run {run.run_id!r} was interrupted: start it again with this run_id, or resume it, and "
                "it continues",
            )
        raise
    finally:
        run.requests.end()
    return run.ending or ending if writer.halted is None else _halted(run, ending)


async def _raise_interruption(run: Run, scope: Scope, ending: Ending) -> None:
    """Raise what interrupts a run whose body has ended in this way, unless its life ends by itself."""
    halted = run.writer.halted
    if halted is None and run.ending is not None:
        if isinstance(ending, Raised) and isinstance(ending.error, KeyboardInterrupt):
            # A finalizer raised it while the run was being suspended.
            raise ending.error
        return
    match ending:
        case Raised(error) if not isinstance(error, Exception):
            # The error that halted the run has cancelled its fibers. If nothing has, asyncio itself has
            # cancelled the task, and the scope of the fibers mistook that for its own cancellation.
            is_by_halt = isinstance(error, Halt) and error.reason is halted
            if halted is None or not (is_by_halt or is_cancellation(error)):
                raise error
        case Raised(error) | FailedWith(TypedFailure(error=error)) if (
            # A worker stops its runs by scopes only. An asyncio.TaskGroup may leave its task cancelled.
            (run.drain is None or is_cancelled_by_scope()) and scope.hides_stop(error)
        ):
            await raise_caught_cancellation()
        case _:
            is_stopped = halted is None and run.turns.is_over and is_being_cancelled()
            if is_stopped and run.cut_off is not None:
                # What the stop has cut off may have decided otherwise.
                await raise_caught_cancellation()


def _halted(run: Run, ending: Ending) -> Halted:
    """Return the ending of a life that was halted, and would have ended in this way."""
    error = run.writer.halted
    assert error is not None
    match ending:
        case Raised(Exception() as defect) if isinstance(error, LeaseLost):
            error.add_note(f"the body ended in {defect!r} as well")
        case _:
            pass
    return Halted(error)


async def _record(claim: Claim, run: Run, ending: Ending) -> Ending:
    """Make the end of a life durable, and return it; `Halted` if that fails."""
    writer = run.writer
    try:
        match ending:
            case CutShort() if run.drain is not None:
                # Its worker blocks the run. Entries of each try would make the journal grow.
                return ending
            case Suspension() | PausedBy() | CutShort():
                await _record_interruption(run)
                return ending
            case Halted() | CarriedOn():
                pass
            case _:
                with suppress(Halt):
                    await _record_end(claim, run, ending)
        if writer.halted is None:
            return ending
        await writer.flush()
    except BaseException as cut_off:
        if is_cancellation(cut_off) and not writer.is_ending:
            # Another save was in progress, so the end was not even added.
            await _record_interruption(run)
        raise
    return ending if isinstance(ending, Halted) else _halted(run, ending)


async def _record_end(
    claim: Claim, run: Run, ending: Returned | FailedWith | Raised | Cancelled
) -> None:
    """Append the last entry of a run that ends now."""
    # So a replay of the whole journal goes the same way.
    run.release_all_held()
    blueprint, writer = claim.place.blueprint, run.writer
    match ending:
        case Returned(output):
            try:
                tree = run.saved_form(
                    output, "output", blueprint.output_types, blueprint.output_type
                )
            except NotSerializable as error:
                raise run.halt(error) from error
            version, digest = blueprint.definition.version, input_digest(claim.input)
            finished = Finished(
                RunStatus.COMPLETED, run.now(), tree, None, (), run.run_id, version, digest
            )
            if await writer.finish(finished, finished.status, release=claim.is_preserved):
                claim.finished = finished
        case FailedWith(cause) | Raised(cause):
            error = write_end(cause, blueprint.output_types)
            finished = Finished(RunStatus.FAILED, run.now(), None, error, run.retry())
            # A failed run is not paused, also not by its next life.
            run.mailbox.take_all(PAUSE)
            await writer.finish(finished, finished.status, seen=run.mailbox.seen)
        case Cancelled():
            finished = Finished(RunStatus.CANCELLED, run.now())
            await _cancel_spawned(run)
            await writer.finish(finished, finished.status)


async def _cancel_spawned(run: Run) -> None:
    """Request the cancellation of all runs that a cancelled run has spawned."""
    for child in dict.fromkeys(run.spawned.values()):
        try:
            store = service_of(run.checkpoints.store, "a spawned run")
            with store_errors(store, child):
                key, body = cancel_request(run.checkpoints.seal, child, f"run {run.run_id}")
                await store.send(child, CANCEL, key=key, body=body)
        except (RunNotFound, RunEnded):
            continue
        except CheckpointError as error:
            raise run.halt(error) from error


async def _record_interruption(run: Run) -> None:
    """Append `Interrupted`, `Suspended` or `Paused` as the last entry."""
    if run.writer.halted is not None:
        return
    ending = run.ending
    with run.writer.last_saves(), suppress(Halt):
        if isinstance(ending, PausedBy):
            run.mailbox.take_all(PAUSE)
            # A cancellation that it has not read ends it anyway.
            seen = run.mailbox.seen
            await run.writer.finish(Paused(run.now(), ending.by), RunStatus.PAUSED, seen=seen)
        # A run that was ready to continue only stops because its worker does.
        elif isinstance(ending, Suspension) and ending.until > run.now():
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
            stopped = (run.drain and run.drain.reason) or interruption_reason()
            entry = run.interruption("defect" if isinstance(ending, CutShort) else stopped)
            await run.writer.finish(entry, RunStatus.INTERRUPTED, due_at=due_at_once(run.now()))
