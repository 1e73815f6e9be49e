"""Start, resume and read runs: what the methods of a workflow do."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from effectflow.checkpoint.errors import RunBusy, RunCancelled, RunNotEnded
from effectflow.checkpoint.journal_reader import run_not_found
from effectflow.checkpoint.store import RunStatus
from effectflow.checkpoint.values import digest_of
from effectflow.workflows.claim import Claim
from effectflow.workflows.driver import Reopening, begin_run, continue_run
from effectflow.workflows.lookup import (
    GivenInput,
    Place,
    completion_of,
    failure_of,
    find,
    last_completion,
    look,
    output_of,
)
from effectflow.workflows.nested import run_nested
from effectflow.workflows.run_ids import new_run_id
from effectflow.workflows.submission import context_tree, new_started


async def start_run(
    place: Place,
    input: object,
    *,
    run_id: str | None,
    context: Mapping[str, object] | None,
    retry_failed: bool,
) -> Any:
    """Return the output or `Failed` of a new run, or of an existing one with this id and input.

    Within another run, it is nested.

    Parameters:
        run_id: its id; by default a random one or, for a nested run, one made from the outer run's id and
            the path.
        context: plain data to keep with it; by default that of the outer run.
    """
    drive = partial(
        _start,
        input=input,
        is_new=run_id is None and not place.is_nested,
        context=place.scope.context if context is None else context,
        retry_failed=retry_failed,
    )
    if place.is_nested:
        # Rejected before the outer run records anything.
        place.blueprint.encode_input(input)
        digest = digest_of(input, options=place.checkpoints.value_options)
        return await run_nested(place, run_id, digest, drive)
    chosen = new_run_id(place.blueprint.definition.name) if run_id is None else run_id
    return await drive(place, chosen)


async def resume_run(place: Place, run_id: str, *, force: bool, reopening: Reopening | None) -> Any:
    """Return the output or `Failed` of a resumed run. Within another run, it is nested."""
    drive = partial(_resume, force=force, reopening=reopening)
    if place.is_nested:
        is_forced = force or reopening is not None
        return await run_nested(place, run_id, "", drive, is_forced=is_forced)
    return await drive(place, run_id)


async def _start(
    place: Place,
    run_id: str,
    *,
    input: object,
    is_new: bool,
    context: Mapping[str, object],
    retry_failed: bool,
) -> Any:
    """Do what `start_run` does, with the id of the run.

    `is_new` means that the id was made for this run, so there is no other run with it.
    """
    blueprint = place.blueprint
    given, saved_context = GivenInput.of(blueprint, input), context_tree(context)
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
            return await continue_run(claim, found)
        if (completion := claim.deleted_meanwhile(given)) is not None:
            return output_of(completion, blueprint, run_id)
        if info is not None:
            owner = "another start" if info.lease is None else info.lease.owner
            raise RunBusy(run_id, owner, 0.0, is_gone=True)
        blueprint.check_types(input)
        started = new_started(place, run_id, given, saved_context)
        return await begin_run(claim, started, input)


async def _resume(place: Place, run_id: str, *, force: bool, reopening: Reopening | None) -> Any:
    """Do what `resume_run` does."""
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
            return await continue_run(claim, found, force=force, reopening=reopening)
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
