"""Submit a run for a worker to drive, and execute nothing."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from effectflow.checkpoint.entries import FORMAT, Started
from effectflow.checkpoint.errors import RunBusy
from effectflow.checkpoint.integrity import first_digest
from effectflow.checkpoint.schema import LATEST
from effectflow.checkpoint.store import RunStatus, RunSummary, at_once, store_errors
from effectflow.checkpoint.values import NO_TYPES, Tree, to_tree
from effectflow.effects.arguments import check_type
from effectflow.workflows.lookup import (
    GivenInput,
    Place,
    completion_of,
    find,
    last_completion,
    look,
)
from effectflow.workflows.run_ids import check_run_id

_TRIES = 100
_SECONDS_BETWEEN_TRIES = 0.05


def check_priority(priority: object) -> None:
    """Raise ValueError for a priority that not every store can keep."""
    if type(priority) is not int or not -(2**31) <= priority < 2**31:
        raise ValueError(f"priority must be an int of 32 bits, not {priority!r}")


def context_tree(context: Mapping[str, object] | None) -> Tree:
    """Return the context of a run in its saved form. Raise NotSerializable if it cannot be saved."""
    if context is None or context == {}:
        return {}
    check_type(context, Mapping, "the context of a run is a dict of plain data by name")
    return to_tree(dict(context), path="context: $", types=NO_TYPES)


def new_started(
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
        parent: the run that spawned it; that of a nested run is the outer one.
    """
    blueprint, around = place.blueprint, place.around
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
        format=FORMAT,
        at=place.scope.clock.now().timestamp(),
        structure=definition.structure,
        module=blueprint.module,
        priority=priority,
        parent=parent if around is None else around.run.run_id,
        is_nested=around is not None,
    )


async def submit_run(
    place: Place,
    input: object,
    *,
    run_id: str,
    context: Mapping[str, object] | None,
    priority: int,
    delay: float = 0.0,
    parent: str = "",
) -> bool:
    """Make a run of this input durable, for a worker to drive. Return whether it is new.

    With the id of an existing run of the same workflow and input, in any state, nothing happens.

    Parameters:
        context: plain data to keep with the run.
        priority: workers take runs with a higher one first.
        delay: the seconds until a worker may take it.
        parent: the run that spawned it.

    Raise NotSerializable for an input that is not as declared, RunConflict if the id belongs to another
    workflow or input, and SaveFailed.
    """
    blueprint, checkpoints = place.blueprint, place.checkpoints
    check_run_id(run_id)
    check_priority(priority)
    input = blueprint.save_input(input)
    blueprint.check_types(input)
    given, saved_context = GivenInput.of(blueprint, input), context_tree(context)
    started = new_started(place, run_id, given, saved_context, priority=priority, parent=parent)
    body, _ = checkpoints.seal.close(started, first_digest(run_id))
    summary = RunSummary(
        started.workflow,
        started.kind,
        started.version,
        RunStatus.PENDING,
        started.at,
        due_at=min(started.at + delay, LATEST) if delay > 0 else at_once(started.at),
        priority=priority,
        parent=parent,
    )
    tries = 0
    while True:
        try:
            with store_errors(checkpoints.store, run_id):
                if await checkpoints.store.create(run_id, [body], summary=summary):
                    return True
        except RunBusy:
            # Another process is starting a run with this id: its first entry will show which one.
            tries += 1
            if tries == _TRIES:
                raise
            await anyio.sleep(_SECONDS_BETWEEN_TRIES)
        if await _is_same(place, run_id, given):
            return False


async def _is_same(place: Place, run_id: str, given: GivenInput) -> bool:
    """Return whether the run exists. Raise RunConflict if it has another input."""
    info = await look(place, run_id)
    if info is None:
        return False
    if await completion_of(place, info, given) is not None:
        return True
    found = await find(place, run_id)
    if found is None:
        return False
    # It raises RunConflict for another input.
    last_completion(found, given)
    return True
