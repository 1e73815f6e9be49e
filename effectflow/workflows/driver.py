"""Drive one run of a workflow: claim it, replay and run its body, and record the end."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from os import urandom
from typing import Any, Self, TypeAlias, cast
from weakref import WeakValueDictionary

import anyio

from effectflow.checkpoint.checkpoint import Checkpoint, fold
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.delayed_saves import save_request
from effectflow.checkpoint.entries import FORMAT, Entry, Finished, HeadState, Resumed, Started
from effectflow.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    LeaseLost,
    RunBusy,
    RunCancelled,
    RunConflict,
    StoreUnavailable,
)
from effectflow.checkpoint.failures import write_error
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.journal_reader import (
    Journal,
    check_against,
    read_end,
    read_journal,
    run_not_found,
)
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.lease import Lease, Owner, begin_claim, end_claim
from effectflow.checkpoint.lease_keeper import keep_lease
from effectflow.checkpoint.observers import CheckpointLoaded, RunResumed, tell
from effectflow.checkpoint.plan import ResumePlan, plan_resume
from effectflow.checkpoint.planned_run import PlannedRun
from effectflow.checkpoint.replay import Recording, read_recording
from effectflow.checkpoint.run import Around, Run
from effectflow.checkpoint.step import interruption_reason
from effectflow.checkpoint.store import KeepsHistory, RunInfo, RunStatus, RunSummary
from effectflow.checkpoint.values import (
    KnownTypes,
    MalformedValue,
    Tree,
    are_same,
    encode_json,
    from_tree,
    to_tree,
)
from effectflow.effects import Halt
from effectflow.effects.errors import LeftToResume, Parked
from effectflow.effects.event_loop import is_cancellation, mark_as_cancelled
from effectflow.effects.interpreter import interpret
from effectflow.effects.nodes import Failed
from effectflow.effects.scope import Scope
from effectflow.workflows.workflow import Blueprint

__all__ = ["Place", "Reopen", "new_run_id", "plan_run", "resume_run", "start_run"]

logger = logging.getLogger(__name__)

Reopen: TypeAlias = Callable[[Any], tuple[str, ...]]
"""Returns the paths of the operators of a complete run that run again, given the output of the run."""

_NO_TYPES = KnownTypes.of()

_ENTRIES_AT_THE_END = 8
"""The entries to read of a complete run. The newest step is usually among them."""


@dataclass(frozen=True)
class Place:
    """The workflow, environment and store of a run, and the run around it.

    Attributes:
        around: the outer run of a nested run, or None.
    """

    blueprint: Blueprint
    checkpoints: Checkpoints
    env: Any
    scope: Scope
    around: Around | None = None

    @property
    def is_preserved(self) -> bool:
        """Whether it is kept once it is complete, as nested runs are, which a resume may need."""
        return self.checkpoints.preserve or self.around is not None

    @property
    def is_nested(self) -> bool:
        """Whether it is in the body of another run."""
        return isinstance(self.scope.flow, DurableFlow)

    def halt_around(self, error: CheckpointError) -> Halt:
        """Halt the outer run, because its body cannot handle a CheckpointError."""
        assert isinstance(self.scope.flow, DurableFlow)
        return self.scope.flow.run.writer.halt(error)


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
) -> Any:
    """Return the output or `Failed` of a new run, or of an existing run with this id and input."""
    blueprint = place.blueprint
    given = _Input(to_tree(input, path="input: $", types=blueprint.input_types))
    context_tree = to_tree(dict(context), path="context: $", types=_NO_TYPES)
    claim = _Claim(place, run_id)
    info = None if is_new else await _look(place, run_id)
    if info is not None and (completion := await _completion(place, info, given)) is not None:
        return await claim.deliver(completion)
    try:
        await claim.begin()
    except RunBusy:
        found = None if is_new else await _find(place, run_id)
        completion = None if found is None else _last_completion(found, given)
        if completion is None:
            raise
        return _output(completion, blueprint, run_id)
    async with claim:
        found = None if is_new else await _find(place, run_id)
        if found is not None:
            if (completion := _last_completion(found, given)) is not None:
                claim.finished = found.completion
                return _output(completion, blueprint, run_id)
            return await _continue(place, found, claim, force=False)
        if (completion := claim.deleted_meanwhile(given)) is not None:
            return _output(completion, blueprint, run_id)
        if info is not None:
            owner = "another start" if info.lease is None else info.lease.owner
            raise RunBusy(run_id, owner, 0.0, is_gone=True)
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
        )
        run = claim.run(started, Recording())
        return await _drive(claim, run, input, is_new=True)


async def resume_run(
    place: Place, *, run_id: str, force: bool, reopen: Reopen | None = None
) -> Any:
    """Return the output or `Failed` of a resumed run."""
    claim = _Claim(place, run_id)
    info = await _look(place, run_id)
    if info is None:
        raise await run_not_found(place.checkpoints.store, run_id)
    if reopen is None and (completion := await _completion(place, info)) is not None:
        return await claim.deliver(completion)
    await claim.begin()
    async with claim:
        found = await _find(place, run_id)
        if found is not None:
            return await _continue(place, found, claim, force=force, reopen=reopen)
        if (completion := claim.deleted_meanwhile()) is not None:
            return _output(completion, place.blueprint, run_id)
        raise await run_not_found(place.checkpoints.store, run_id)


async def plan_run(place: Place, run_id: str, *, effects: bool) -> ResumePlan:
    """Return what a resume would do: replay the run, and change nothing."""
    _check_run_id(run_id)
    found = await _find(place, run_id)
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
        recording=_recording(found, blueprint),
        types=blueprint.output_types,
        clock=scope.clock,
        context=_context(found.started),
        started_version=found.started_version,
    )
    inside = _scope_of_body(run, scope)
    inside.forbidden = run.forbidden(effects=effects)
    input = _decode(known.initial_state, blueprint.input_types, run_id, "input")
    outcome: Any = None
    defect: Exception | None = None
    async with run.tasks:
        try:
            outcome = await interpret(blueprint.body(input), place.env, inside)
            run.root.end()
        except Parked as parked:
            run.park(run.root, parked)
        except Halt as halt:
            if halt.reason is not run.writer.halted:
                raise
        except Exception as raised:
            # Kept from the task group, which would wrap it.
            defect = raised
    return run.plan(outcome, defect)


@dataclass(frozen=True)
class _Input:
    """The input of a run in its saved form, and its digest as in `Finished`."""

    tree: Tree

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(encode_json(self.tree)).hexdigest()[:32]


@dataclass(frozen=True)
class _Found:
    """A run in a store.

    Attributes:
        written: its journal as it is in the store.
        journal: its journal as the current version of the workflow would have written it.
        was: the definition of the workflow when the run was last driven.
        checkpoint: the fold of the journal.
    """

    written: Journal
    journal: Journal
    was: Definition
    checkpoint: Checkpoint

    @property
    def started(self) -> Started:
        """The first entry, as the current version of the workflow would have written it."""
        return cast(Started, self.journal.entries[0])

    @property
    def completion(self) -> Finished | None:
        """How the run ended if it is complete."""
        known = self.checkpoint
        return known.finished if known.status is RunStatus.COMPLETED else None

    @property
    def started_version(self) -> str:
        """The version of the workflow that started the run, before any migration."""
        return cast(Started, self.written.entries[0]).version


def _check_run_id(run_id: str) -> None:
    """Raise NotSerializable for an id that no encoding can represent, which stores would reject."""
    to_tree(run_id, path="run_id", types=_NO_TYPES)


async def _look(place: Place, run_id: str) -> RunInfo | None:
    """Return one line about a run of this workflow; None if there is none."""
    _check_run_id(run_id)
    with _store_errors(place.checkpoints, run_id):
        info = await place.checkpoints.store.info(run_id)
    if info is not None and info.summary.workflow != place.blueprint.definition.name:
        # It tells whose run it is.
        await _find(place, run_id)
    return info


async def _completion(place: Place, info: RunInfo, given: _Input | None = None) -> Finished | None:
    """Return how a complete run ended; None if it is not complete.

    Its last entries tell that, so that the price does not depend on the length of the run. If they are
    damaged, or of another version, the whole journal is read.

    Parameters:
        given: the input that it must have; None for any.
    """
    if info.summary.status is not RunStatus.COMPLETED:
        return None
    completion = await _last_entry(place, info)
    if completion is not None and (given is None or completion.input == given.digest):
        return completion
    found = await _find(place, info.run_id)
    if found is None:
        return None
    return found.completion if given is None else _last_completion(found, given)


async def _last_entry(place: Place, info: RunInfo) -> Finished | None:
    """Return the last entry of a complete run, if that tells all about it."""
    blueprint, checkpoints, run_id = place.blueprint, place.checkpoints, info.run_id
    if blueprint.migrations and checkpoints.observers:
        # Observers are told the name of the newest step, which a migration may change.
        return None
    count = _ENTRIES_AT_THE_END
    while True:
        with _store_errors(checkpoints, run_id):
            entries = await read_end(
                checkpoints.store, run_id, checkpoints.seal, length=info.length, count=count
            )
        last = entries[-1] if entries else None
        if not isinstance(last, Finished) or last.status is not RunStatus.COMPLETED:
            return None
        if last.run_id != run_id or not last.input:
            return None
        if blueprint.migrations and last.version != blueprint.definition.version:
            return None
        steps = [one.step for one in entries if isinstance(one, HeadState)]
        if steps or not checkpoints.observers or count >= info.length:
            step = steps[-1] if steps else None
            tell(checkpoints.observers, CheckpointLoaded(run_id, info.length, step))
            return last
        count *= _ENTRIES_AT_THE_END


async def _find(place: Place, run_id: str) -> _Found | None:
    """Return a run of this workflow, with its whole journal; None if there is none."""
    blueprint, checkpoints = place.blueprint, place.checkpoints
    with _store_errors(checkpoints, run_id):
        written = await read_journal(checkpoints.store, run_id, checkpoints.seal)
    if not written.entries:
        return None
    checkpoint = fold(written.entries, run_id)
    if checkpoint.workflow != blueprint.definition.name:
        owner = f"it is a run of workflow {checkpoint.workflow!r}"
        raise RunConflict(run_id, f"{owner}, not of {blueprint.definition.name!r}")
    found = _Found(written, written, checkpoint.definition, checkpoint)
    entries = blueprint.upgraded(written.entries)
    if entries is not written.entries:
        journal, checkpoint = replace(written, entries=entries), fold(entries, run_id)
        found = replace(found, journal=journal, checkpoint=checkpoint)
    step = checkpoint.state.step if checkpoint.state is not None else None
    tell(checkpoints.observers, CheckpointLoaded(run_id, len(entries), step))
    return found


@contextmanager
def _store_errors(checkpoints: Checkpoints, run_id: str) -> Generator[None]:
    """Raise what the store raises as a CheckpointError, which no body of an outer run can handle."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        reason = f"it raised {error!r} for run {run_id!r}"
        raise StoreUnavailable(repr(checkpoints.store), reason) from error


class _Overlap:
    """The starts and resumes of one run in this process that are under way at the same time.

    With `preserve=False`, a start may claim a run that another one has completed and deleted since the
    first one began. It must not execute the run again, and finds the output here.

    Attributes:
        completed: the workflow and the last entry of the run that was deleted.
    """

    def __init__(self) -> None:
        self.completed: tuple[str, Finished] | None = None


_overlaps: WeakValueDictionary[tuple[int, str], _Overlap] = WeakValueDictionary()
"""By the identity of the store and the id of the run."""


class _Claim:
    """Holds the lease of a run from `begin` on, and releases it however the run ends.

    With `preserve=False`, it deletes a complete run while it holds the lease, so that nothing comes in
    between.

    Attributes:
        finished: the last entry of the run once it is complete.
        input: the input of the run.
    """

    def __init__(self, place: Place, run_id: str) -> None:
        self.place = place
        self.finished: Finished | None = None
        self.input: _Input | None = None
        self._checkpoints = place.checkpoints
        self._run_id = run_id
        self._key = (id(place.checkpoints.store), run_id)
        self._overlap = _overlaps.setdefault(self._key, _Overlap())
        self._owner: Owner | None = None
        self._lease: Lease | None = None
        self._run: Run | None = None

    async def begin(self) -> None:
        """Claim the run. Raise RunBusy if another owner holds it."""
        self._owner = owner = begin_claim()
        try:
            self._lease = await self._claim(owner)
        except Exception as error:
            end_claim(owner, is_released=isinstance(error, RunBusy))
            raise
        except BaseException:
            # The claim was cut off by a cancellation and may hold: claim the run again to release it.
            is_released = False
            with anyio.move_on_after(5, shield=True), suppress(Exception):
                await self._checkpoints.store.release(await self._claim(owner))
                is_released = True
            end_claim(owner, is_released=is_released)
            raise

    async def _claim(self, owner: Owner) -> Lease:
        seconds = self._checkpoints.lease_seconds
        with _store_errors(self._checkpoints, self._run_id):
            return await self._checkpoints.store.claim(
                self._run_id, owner=str(owner), seconds=seconds
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        is_released = False
        try:
            if self.finished is not None and not self.place.is_preserved:
                is_released = await self._delete(self.finished)
            if not is_released:
                is_released = await self._release()
        finally:
            if self._owner is not None:
                end_claim(self._owner, is_released=is_released)

    async def _release(self) -> bool:
        if self._run is not None:
            return await self._run.writer.release()
        with anyio.move_on_after(5, shield=True), self._only_logged("released"):
            await self._checkpoints.store.release(self.lease)
            return True
        return False

    async def _delete(self, finished: Finished) -> bool:
        """Delete the run. Return False if that failed: the next start or resume of it tries again."""
        writer = None if self._run is None else self._run.writer
        self._overlap.completed = self.place.blueprint.definition.name, finished
        is_deleted = False
        try:
            with anyio.move_on_after(30, shield=True), self._only_logged("deleted"):
                await self._checkpoints.store.delete(
                    self._run_id, lease=self.lease if writer is None else writer.lease
                )
                is_deleted = True
        finally:
            # What begins from here on executes the run again.
            if _overlaps.get(self._key) is self._overlap:
                del _overlaps[self._key]
        if is_deleted and writer is not None:
            writer.is_released = True
        return is_deleted

    async def deliver(self, completion: Finished) -> Any:
        """Return the output of a complete run, and delete the run if it is not to be preserved."""
        output = _output(completion, self.place.blueprint, self._run_id)
        if not self.place.is_preserved:
            try:
                await self.begin()
            except CheckpointError:
                # Its holder deletes it, or the next start or resume does.
                return output
            async with self:
                info = await _look(self.place, self._run_id)
                if info is not None and info.summary.status is RunStatus.COMPLETED:
                    self.finished = completion
        return output

    def deleted_meanwhile(self, given: _Input | None = None) -> Finished | None:
        """Return how the run ended that this process has completed and deleted since this claim was made.

        Raise RunConflict if it was one of another workflow, or of another input than the given one.
        """
        if self._overlap.completed is None:
            return None
        workflow, finished = self._overlap.completed
        if workflow != self.place.blueprint.definition.name:
            raise RunConflict(self._run_id, f"it was a run of workflow {workflow!r}")
        if given is not None and finished.input != given.digest:
            raise RunConflict(self._run_id, "it was started with another input")
        return finished

    @contextmanager
    def _only_logged(self, what: str) -> Generator[None]:
        """Log exceptions of the store here, because they do not change how the run ended."""
        try:
            yield
        except Exception as error:
            logger.warning("run %r was not %s: %r", self._run_id, what, error)

    async def check_is_whole(self, known: Checkpoint) -> None:
        """Raise CorruptCheckpoint if entries are missing at the end of the journal."""
        with _store_errors(self._checkpoints, self._run_id):
            info = await self._checkpoints.store.info(self._run_id)
        if info is not None:
            check_against(info, known)

    @property
    def lease(self) -> Lease:
        """The lease, while the claim is held."""
        assert self._lease is not None
        return self._lease

    def run(
        self,
        opening: Started | Resumed,
        recording: Recording,
        found: _Found | None = None,
        *,
        force: bool = False,
    ) -> Run:
        """Return a run that begins with this entry, or continues after the entries that were found."""
        if found is None:
            started, journal = cast(Started, opening), Journal.empty(self._run_id)
            version = started_version = started.version
        else:
            started, journal = found.started, found.journal
            version, started_version = found.checkpoint.definition.version, found.started_version
        checkpoints, place = self._checkpoints, self.place
        self.input = _Input(started.input)
        # A check of the attribute, because a check of the protocol takes longer than the rest.
        if hasattr(checkpoints.store, "keep_history"):
            cast("KeepsHistory", checkpoints.store).keep_history(self._run_id, checkpoints.history)
        summary = RunSummary(started.workflow, started.kind, version, RunStatus.RUNNING, started.at)
        writer = JournalWriter(
            self._run_id,
            checkpoints,
            lease=self.lease,
            length=len(journal.entries),
            digest=journal.digest,
            summary=summary,
            opening=opening,
        )
        self._run = Run(
            self._run_id,
            started.workflow,
            checkpoints,
            writer=writer,
            recording=recording,
            types=place.blueprint.output_types,
            clock=place.scope.clock,
            context=_context(started),
            started_version=started_version,
            force=force,
            around=place.around,
            outer_operators=place.scope.operators,
        )
        return self._run


async def _continue(
    place: Place,
    found: _Found,
    claim: _Claim,
    *,
    force: bool,
    reopen: Reopen | None = None,
) -> Any:
    """Continue a run at the end of its journal."""
    blueprint, known = place.blueprint, found.checkpoint
    await claim.check_is_whole(known)
    if known.status is RunStatus.CANCELLED:
        raise RunCancelled(known.run_id)
    reopened: tuple[str, ...] = ()
    completion = found.completion
    if completion is not None:
        output = _output(completion, blueprint, known.run_id)
        reopened = () if reopen is None else reopen(output)
        if not reopened:
            claim.finished = completion
            return output
    definition = blueprint.definition
    changed = definition.changed_since(known.definition, known.run_id)
    if changed is not None and not force:
        raise changed
    input = _decode(known.initial_state, blueprint.input_types, known.run_id, "input")
    resumed = Resumed(claim.lease.owner, place.scope.clock.now().timestamp(), reopened=reopened)
    if found.was.fingerprint != definition.fingerprint:
        resumed = replace(
            resumed,
            version=definition.version,
            steps=definition.steps,
            structure=definition.structure,
        )
    # The recording includes the entry that precedes everything that this life adds.
    recording = _recording(found, blueprint, resumed)
    run = claim.run(resumed, recording, found, force=force)
    if place.checkpoints.observers:
        start = plan_resume(known).start
        run.notify(RunResumed(known.run_id, start[0] if start else None))
    return await _drive(claim, run, input, is_new=False)


def _recording(found: _Found, blueprint: Blueprint, *more: Entry) -> Recording:
    """Return the recording of the journal, without the steps that migrations remove."""
    recording = read_recording((*found.journal.entries, *more))
    recording.leave_behind((number, number) for number in blueprint.removed(found.written.entries))
    return recording


async def _drive(claim: _Claim, run: Run, input: Any, *, is_new: bool) -> Any:
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
                    body = place.blueprint.body(input)
                    outcome = await interpret(body, place.env, _scope_of_body(run, scope))
                    run.root.end()
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
        return Failed(writer.halted)
    if ended is not None:
        raise ended
    return outcome


def _scope_of_body(run: Run, scope: Scope) -> Scope:
    """Return the scope of the body of a run. The operators around it may cancel it as well."""
    inside = scope.copy()
    inside.flow = run.root
    inside.step = None
    inside.context = run.context
    inside.is_observing = inside.is_shielded = False
    return inside


async def _record_end(claim: _Claim, run: Run, outcome: Any, defect: BaseException | None) -> None:
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
    output = run.encode(outcome, "output", types)
    assert claim.input is not None
    digest = claim.input.digest
    finished = Finished(RunStatus.COMPLETED, run.now(), output, None, run.run_id, version, digest)
    if await run.writer.finish(finished, finished.status, release=place.is_preserved):
        claim.finished = finished


async def _record_interruption(run: Run) -> None:
    """Append `Interrupted`, or that the run was cancelled, as the last entry."""
    if run.writer.halted is not None:
        return
    with anyio.move_on_after(5, shield=True), suppress(Halt):
        await run.cancel_if_decided()
        status: RunStatus = RunStatus.INTERRUPTED
        entry: Entry | None = run.interruption(interruption_reason())
        if run.cancelled_at is not None:
            status = RunStatus.CANCELLED
            entry = Finished(status, run.now())
        await run.writer.finish(entry, status)


def _last_completion(found: _Found, given: _Input) -> Finished | None:
    """Return how the run of this input ended when it was last complete; None if it never was.

    That output is valid while a complete run is continued, until that succeeds.
    """
    if not are_same(found.checkpoint.initial_state, given.tree):
        raise RunConflict(found.checkpoint.run_id, "it was started with another input")
    for entry in reversed(found.journal.entries):
        if isinstance(entry, Finished) and entry.status is RunStatus.COMPLETED:
            return entry
    return None


def _output(completion: Finished, blueprint: Blueprint, run_id: str) -> Any:
    return _decode(completion.output, blueprint.output_types, run_id, "output")


def _context(started: Started) -> Mapping[str, object]:
    context = _decode(started.context, _NO_TYPES, started.run_id, "context")
    if not isinstance(context, dict):
        raise CorruptCheckpoint(started.run_id, "its context is not a mapping")
    return cast("dict[str, object]", context)


def _decode(tree: Tree, types: KnownTypes, run_id: str, what: str) -> Any:
    try:
        return from_tree(tree, path=f"{what}: $", types=types)
    except MalformedValue as error:
        reason = f"its {what} is not what the workflow declares: {error}"
        raise CorruptCheckpoint(run_id, reason) from error
