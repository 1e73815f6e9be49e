"""Start, submit, resume and read runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from effectflow.checkpoint.checkpoint import summary_of
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.endings import Ending, Halted
from effectflow.checkpoint.entries import FORMAT, Started
from effectflow.checkpoint.errors import (
    NotSerializable,
    RunBusy,
    RunCancelled,
    RunConflict,
    RunNotEnded,
    RunNotFound,
)
from effectflow.checkpoint.integrity import first_digest, off_loop
from effectflow.checkpoint.journal_reader import run_not_found
from effectflow.checkpoint.observers import (
    NOT_OBSERVED,
    LifeBegan,
    Surroundings,
    surrounding,
    tell,
    with_context,
)
from effectflow.checkpoint.run_info import RunDetails, RunStatus, due_at_once
from effectflow.checkpoint.schema import LATEST
from effectflow.checkpoint.store import store_errors, transactions_of
from effectflow.checkpoint.values import NO_TYPES, Tree, to_tree
from effectflow.effects.arguments import check_text, check_type
from effectflow.runs.claim import Claim
from effectflow.runs.driver import (
    begin_run,
    continue_run,
    outcome_of,
    running_summary,
)
from effectflow.runs.reopening import Reopening
from effectflow.runs.run_ids import check_run_id, new_run_id
from effectflow.runs.stored_run import (
    GivenInput,
    Place,
    completion_of,
    failure_of,
    last_completion,
    output_of,
    read_run,
    run_info,
)


async def start_run(
    place: Place,
    input: object,
    *,
    run_id: str | None,
    context: Mapping[str, object] | None,
    retry_failed: bool,
) -> Any:
    """Return the output or `TypedFailure` of a new run, or of an existing one with this id and input.

    Parameters:
        run_id: its id; by default a random one.
        context: plain data to keep with it; by default that of the run around, if a step drives it.
    """
    context = place.scope.context if context is None else context
    blueprint = place.blueprint
    run_id = new_run_id(blueprint.definition.name) if run_id is None else run_id
    given, _ = GivenInput.of(blueprint, input), _context_tree(context)
    claim = Claim(place, run_id)
    check_run_id(run_id)
    info = None
    try:
        blueprint.check_types(input)
    except NotSerializable:
        # An existing run has another input, or one of the type that was declared then.
        info = await run_info(place, run_id)
        if info is None:
            raise
    if info is None and surrounding(place.checkpoints.observers):
        # They see the beginning of a life, so it must be known that there is one.
        info = await run_info(place, run_id)
    # Most runs are new, so others are looked up only after this.
    if info is None and (new := await _new_run(claim, given, context or {}, input)) is not None:
        return new[0]
    info = info or await run_info(place, run_id)
    if info is not None and (completion := await completion_of(place, info, given)) is not None:
        return await claim.deliver(completion)
    try:
        await claim.begin()
    except RunNotFound:
        if (completion := claim.deleted_meanwhile(given)) is not None:
            return output_of(completion, blueprint, run_id)
        raise RunBusy(run_id, "another start", 0.0, is_gone=True) from None
    except RunBusy:
        found = await read_run(place, run_id)
        completion = None if found is None else last_completion(found, given)
        if completion is None:
            raise
        return output_of(completion, blueprint, run_id)
    async with claim:
        found = await read_run(place, run_id)
        if found is None:
            raise await run_not_found(place.checkpoints.store, run_id)
        if (completion := last_completion(found, given)) is not None:
            claim.finished = found.completion
            return output_of(completion, blueprint, run_id)
        if not retry_failed and found.checkpoint.status is RunStatus.FAILED:
            return failure_of(found, blueprint)
        return await _outcome(claim, await continue_run(claim, found))


async def _new_run(
    claim: Claim, given: GivenInput, context: Mapping[str, object], input: object
) -> tuple[Any] | None:
    """Create a run and drive it. Return its output or `TypedFailure`; None if the run exists."""
    place, run_id = claim.place, claim.run_id
    observers, workflow = place.checkpoints.observers, place.blueprint.definition.name
    context = with_context(observers, run_id, workflow, context)
    started = _new_started(place, run_id, given, _context_tree(context))
    around: AbstractContextManager[Mapping[str, str]] = NOT_OBSERVED
    life = None
    if observers:
        life = LifeBegan(run_id, workflow, context, {}, is_secret=claim.is_secret)
        around = Surroundings(surrounding(observers), life)
    with around as kept:
        if kept:
            started = replace(started, kept=dict(kept))
        body, digest = await _closed(started, place.checkpoints)
        if not await claim.create(body, running_summary(started, started.version, 0, started.at)):
            return None
        if life is not None:
            tell(observers, life)
        async with claim:
            if claim.is_too_late:
                await claim.discard()
                completion = claim.deleted_meanwhile(given)
                assert completion is not None
                return (output_of(completion, place.blueprint, run_id),)
            return (await _outcome(claim, await begin_run(claim, started, digest, input)),)


async def _outcome(claim: Claim, ending: Ending) -> Any:
    """Return how a life has ended, as `outcome_of`. Block the run if this life was halted."""
    if isinstance(ending, Halted):
        await claim.block_if_running(ending.error)
    return outcome_of(claim.run_id, ending)


async def resume_run(place: Place, run_id: str, *, force: bool, reopening: Reopening | None) -> Any:
    """Return the output or `TypedFailure` of a resumed run."""
    claim = Claim(place, run_id)
    info = await run_info(place, run_id)
    if info is None:
        raise await run_not_found(place.checkpoints.store, run_id)
    if reopening is None and (completion := await completion_of(place, info)) is not None:
        return await claim.deliver(completion, force=force)
    try:
        await claim.begin()
    except RunNotFound:
        if (completion := claim.deleted_meanwhile()) is not None:
            return output_of(completion, place.blueprint, run_id)
        raise
    async with claim:
        found = await read_run(place, run_id)
        if found is None:
            raise await run_not_found(place.checkpoints.store, run_id)
        ending = await continue_run(claim, found, force=force, reopening=reopening)
        return await _outcome(claim, ending)


async def submit_run(
    place: Place,
    input: object,
    *,
    run_id: str,
    context: Mapping[str, object] | None,
    priority: int,
    delay: float = 0.0,
    parent: str = "",
    connection: object = None,
    queue: str = "",
    key: str = "",
) -> bool:
    """Make a run of this input durable, for a worker to drive. Return whether it is new.

    With the id of an existing run of the same workflow, input and parent, in any state, nothing happens.

    Parameters:
        context: plain data to keep with the run.
        priority: workers take runs with a higher one first.
        delay: the seconds until a worker may take it.
        parent: the run that spawned it; empty for any.
        connection: one to the database of the store, in whose transaction the run is created.
        queue, key: as in `RunSummary`.

    Raise NotSerializable for an input that is not as declared, RunConflict if the id belongs to another
    workflow, input or parent, and SaveFailed.
    """
    blueprint, checkpoints = place.blueprint, place.checkpoints
    check_run_id(run_id)
    check_priority(priority)
    check_queue(queue, key)
    input = blueprint.save_input(input)
    blueprint.check_types(input)
    given = GivenInput.of(blueprint, input)
    name = blueprint.definition.name
    context = {} if context is None else context
    saved_context = _context_tree(with_context(checkpoints.observers, run_id, name, context))
    started = replace(
        _new_started(place, run_id, given, saved_context, priority=priority, parent=parent),
        queue=queue,
        key=key,
    )
    body, _ = await _closed(started, checkpoints)
    due_at = min(started.at + delay, LATEST) if delay > 0 else due_at_once(started.at)
    details = RunDetails(started.kind, started.version)
    summary = summary_of(started, RunStatus.PENDING, due_at=due_at, details=details)
    if connection is not None:
        store = transactions_of(checkpoints.store, "submit(connection=)")
        if await store.create_within(connection, run_id, [body], summary=summary):
            return True
        if await _is_same(place, run_id, given, parent):
            return False
        raise RunConflict(run_id, "it was submitted in this transaction before")
    while True:
        with store_errors(checkpoints.store, run_id, saves="run"):
            if await checkpoints.store.create(run_id, [body], summary=summary) is not None:
                return True
        if await _is_same(place, run_id, given, parent):
            return False


async def _closed(started: Started, checkpoints: Checkpoints) -> tuple[bytes, bytes]:
    """Return the first entry of a run as bytes, and its digest."""
    draft = checkpoints.seal.draft(started)
    close = partial(checkpoints.seal.close, draft, first_digest(started.run_id))
    return await off_loop(close, draft.size)


async def _is_same(place: Place, run_id: str, given: GivenInput, parent: str) -> bool:
    """Return whether the run exists. Raise RunConflict if it has another input or parent."""
    info = await run_info(place, run_id)
    if info is None:
        return False
    if await completion_of(place, info, given) is None:
        found = await read_run(place, run_id)
        if found is None:
            return False
        # It raises RunConflict for another input.
        last_completion(found, given)
    spawned_by = info.summary.parent
    if parent and spawned_by != parent:
        # It would be cancelled with a run that has nothing to do with it.
        owner = f"run {spawned_by!r}" if spawned_by else "no run"
        raise RunConflict(run_id, f"it was spawned by {owner}, not by run {parent!r}")
    return True


def _new_started(
    place: Place,
    run_id: str,
    given: GivenInput,
    context: Tree,
    *,
    priority: int = 0,
    parent: str = "",
) -> Started:
    """Return the first entry of a new run.

    Parameters:
        priority: as in `Started`.
        parent: the run that spawned it.
    """
    blueprint = place.blueprint
    definition = blueprint.definition
    return Started(
        run_id=run_id,
        workflow=definition.name,
        kind=definition.kind,
        version=definition.version,
        fingerprint=definition.fingerprint,
        steps=definition.steps,
        input=given.tree,
        context=context,
        journal=FORMAT,
        at=place.scope.clock.now().timestamp(),
        structure=definition.structure,
        module=blueprint.module,
        priority=priority,
        parent=parent,
    )


def check_priority(priority: object) -> None:
    """Raise ValueError for a priority that not every store can keep."""
    if type(priority) is not int or not -(2**31) <= priority < 2**31:
        raise ValueError(f"priority must be an int of 32 bits, not {priority!r}")


def check_queue(queue: object, key: object) -> None:
    """Raise TypeError or ValueError for a queue or a key that not every store can keep."""
    for what, given in {"queue": queue, "key": key}.items():
        check_text(what, given)
        # Stores sort by them, and PostgreSQL has a limit for that.
        if len(str(given).encode()) > _MOST_BYTES:
            raise ValueError(f"{what} must have at most {_MOST_BYTES} bytes, not {given!r}")


_MOST_BYTES = 200


def _context_tree(context: Mapping[str, object] | None) -> Tree:
    """Return the context of a run in its saved form. Raise NotSerializable if it cannot be saved."""
    if context is None or context == {}:
        return {}
    check_type(context, Mapping, "the context of a run is a dict of plain data by name")
    return to_tree(dict(context), path="context: $", types=NO_TYPES)


async def read_result(place: Place, run_id: str) -> Any:
    """Return the recorded output or `TypedFailure` of a run that has ended. Change nothing."""
    info = await run_info(place, run_id)
    if info is not None and (completion := await completion_of(place, info)) is not None:
        return output_of(completion, place.blueprint, run_id)
    found = None if info is None else await read_run(place, run_id)
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
