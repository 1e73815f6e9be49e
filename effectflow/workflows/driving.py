"""Drive one run of a workflow: claim it, run its body over its journal, and write down the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import anyio

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.entries import Finished, Resumed, Started
from effectflow.checkpoint.errors import CorruptCheckpoint, LeaseLost, RunConflict
from effectflow.checkpoint.events import CheckpointLoaded, RunResumed, tell
from effectflow.checkpoint.failures import write_error
from effectflow.checkpoint.format_versions import format_version
from effectflow.checkpoint.interruption import interruption_reason
from effectflow.checkpoint.journal import fold
from effectflow.checkpoint.live_run import LiveRun
from effectflow.checkpoint.reading import (
    Journal,
    read_journal,
    run_not_found,
)
from effectflow.checkpoint.store import RunStatus
from effectflow.checkpoint.values import (
    KnownTypes,
    MalformedValue,
    Tree,
    are_same,
    from_tree,
    to_tree,
)
from effectflow.effects import Halt
from effectflow.effects.errors import LeftToResume
from effectflow.effects.interpreter import interpret
from effectflow.effects.nodes import Failed
from effectflow.effects.scope import Scope
from effectflow.workflows.blueprint import Blueprint
from effectflow.workflows.claim import Claim

__all__ = ["Reopen", "resume_run", "start_run"]

Reopen: TypeAlias = Callable[[Any], bool]
"""Whether a complete run is to go on all the same, given its output."""

_NO_TYPES = KnownTypes.of()


async def start_run(
    blueprint: Blueprint,
    input: object,
    *,
    run_id: str,
    is_new: bool,
    context: Mapping[str, object],
    checkpoints: Checkpoints,
    env: Any,
    scope: Scope,
) -> Any:
    """The output or `Failed` of a new run, or of the run that has this id and input already."""
    _check_begins(run_id, scope)
    input_tree = to_tree(input, path="input: $", types=blueprint.input_types)
    context_tree = to_tree(dict(context), path="context: $", types=_NO_TYPES)
    found = None if is_new else await _find(blueprint, checkpoints, run_id)
    if found is not None:
        _check_input(found.checkpoint, input_tree)
        if (completion := _last_completion(found)) is not None:
            return _output(completion, blueprint, run_id)
    async with Claim(checkpoints, run_id, is_outermost=scope.recorder is None) as claim:
        if not is_new:
            # Another process may have driven the run until just now.
            found = await _find(blueprint, checkpoints, run_id, found)
        if found is not None:
            _check_input(found.checkpoint, input_tree)
            if (completion := _last_completion(found)) is not None:
                return _output(completion, blueprint, run_id)
            return await _continue(blueprint, found, claim, env, scope, force=False)
        definition = blueprint.definition
        started = Started(
            run_id=run_id,
            workflow=definition.name,
            kind=definition.kind,
            version=definition.version,
            fingerprint=definition.fingerprint,
            steps=definition.steps,
            input=input_tree,
            context=context_tree,
            format=format_version(),
            at=scope.clock.now().timestamp(),
            structure=definition.structure,
        )
        known = fold([started], run_id)
        run = claim.live_run(known, Journal.empty(run_id), _context(known), clock=scope.clock)
        run.add(started)
        return await _drive(run, blueprint, input, env, scope)


async def resume_run(
    blueprint: Blueprint,
    *,
    run_id: str,
    force: bool,
    checkpoints: Checkpoints,
    env: Any,
    scope: Scope,
    reopen: Reopen | None = None,
) -> Any:
    """The output or `Failed` of a run taken up where it stood; of a complete one, if it is reopened."""
    _check_begins(run_id, scope)
    found = await _find(blueprint, checkpoints, run_id)
    if found is None:
        raise await run_not_found(checkpoints.store, run_id)
    completion = _completion(found.checkpoint)
    if completion is not None and reopen is None:
        return _output(completion, blueprint, run_id)
    async with Claim(checkpoints, run_id, is_outermost=scope.recorder is None) as claim:
        # Another process may have driven the run until just now.
        found = await _find(blueprint, checkpoints, run_id, found) or found
        return await _continue(blueprint, found, claim, env, scope, force=force, reopen=reopen)


def _check_begins(run_id: str, scope: Scope) -> None:
    """Begin no run in a finalizer of one that is being stopped: like a step, it is left to the resume."""
    if scope.is_stopping:
        raise LeftToResume(f"run {run_id!r}")
    scope.come_to_step()


@dataclass(frozen=True)
class _Found:
    """A run that a store has.

    Attributes:
        written: its journal as it is in the store.
        journal: the same as the workflow would have written it as it is now.
        was: the definition that the run had when it was last driven.
        checkpoint: what the journal says.
    """

    written: Journal
    journal: Journal
    was: Definition
    checkpoint: Checkpoint


async def _find(
    blueprint: Blueprint, checkpoints: Checkpoints, run_id: str, known: _Found | None = None
) -> _Found | None:
    """A run of this workflow, read on from what is known of it; None if there is no such run."""
    # An id that no encoding can hold would be another one in each store, or none.
    to_tree(run_id, path="run_id", types=_NO_TYPES)
    before = None if known is None else known.written
    written = await read_journal(checkpoints.store, run_id, checkpoints.seal, before)
    if known is not None and len(written.entries) == len(known.written.entries):
        return known
    if not written.entries:
        return None
    checkpoint = fold(written.entries, run_id)
    _check_workflow(checkpoint, blueprint)
    found = _Found(written, written, checkpoint.definition, checkpoint)
    entries = blueprint.upgraded(written.entries)
    if entries is not written.entries:
        journal, checkpoint = replace(written, entries=entries), fold(entries, run_id)
        found = replace(found, journal=journal, checkpoint=checkpoint)
    if known is None:
        step = checkpoint.state.step if checkpoint.state is not None else None
        tell(checkpoints.observers, CheckpointLoaded(run_id, len(entries), step))
    return found


async def _continue(
    blueprint: Blueprint,
    found: _Found,
    claim: Claim,
    env: Any,
    scope: Scope,
    *,
    force: bool,
    reopen: Reopen | None = None,
) -> Any:
    """Drive a run on from the end of its journal."""
    known = found.checkpoint
    await claim.check_is_whole(known)
    completion = _completion(known)
    if completion is not None:
        output = _output(completion, blueprint, known.run_id)
        if reopen is None or not reopen(output):
            return output
    definition = blueprint.definition
    changed = definition.changed_since(known.definition, known.run_id)
    if changed is not None and not force:
        raise changed
    input = _decode(known.initial_state, blueprint.input_types, known.run_id, "input")
    run = claim.live_run(known, found.journal, _context(known), force=force, clock=scope.clock)
    run.add(_resumed(claim.lease.owner, found, definition, run.now()))
    if completion is not None:
        run.reopen()
    if run.checkpoints.observers:
        run.notify(RunResumed(known.run_id, _next_step(blueprint, known)))
    return await _drive(run, blueprint, input, env, scope)


def _next_step(blueprint: Blueprint, known: Checkpoint) -> str | None:
    # What keeps it from being told keeps the run from going on as well, and is said there.
    with suppress(Exception):
        return blueprint.plan(known, force=True).start
    return None


def _resumed(owner: str, found: _Found, now: Definition, at: float) -> Resumed:
    """What says that the run goes on, and in which definition and format if these are others now."""
    format = None if found.journal.format == format_version() else format_version()
    resumed = Resumed(owner, at, format=format)
    if found.was.fingerprint == now.fingerprint:
        return resumed
    return replace(resumed, version=now.version, steps=now.steps, structure=now.structure)


async def _drive(run: LiveRun, blueprint: Blueprint, input: Any, env: Any, scope: Scope) -> Any:
    """Run the body, and make its end durable before anybody hears of it."""
    place = scope.inside_run(run, run.context)
    defect: Exception | None = None
    outcome: Any = None
    try:
        async with anyio.create_task_group() as group:
            for attend in (run.keep_lease, run.save_what_lingers, run.save_when_asked):
                group.start_soon(_attend, attend, group.cancel_scope)
            try:
                # Nothing runs before the run itself, or its resumption, is durable.
                await run.save()
                outcome = await interpret(blueprint.body(input), env, place)
            except Halt as halt:
                if halt.reason is not run.halted:
                    raise
            except Exception as raised:
                defect = raised
            group.cancel_scope.cancel()
    except BaseException:
        await _write_interruption(run)
        raise
    if run.halted is None:
        with suppress(Halt):
            await _write_end(run, blueprint, outcome, defect)
    if run.halted is not None:
        if isinstance(run.halted, LeaseLost) and defect is not None:
            run.halted.add_note(f"the body ended in {defect!r} as well")
        return Failed(run.halted)
    if defect is not None:
        raise defect
    return outcome


async def _attend(attend: Callable[[], Awaitable[None]], body: anyio.CancelScope) -> None:
    """Look after the run; if it was ended meanwhile, end its body."""
    try:
        await attend()
    except Halt:
        body.cancel()


async def _write_end(
    run: LiveRun, blueprint: Blueprint, outcome: Any, defect: Exception | None
) -> None:
    types = blueprint.output_types
    if defect is not None:
        error = write_error(defect, types, is_defect=True)
        await run.finish(Finished(RunStatus.FAILED, None, error, run.now()), RunStatus.FAILED)
    elif outcome.__class__ is Failed:
        error = write_error(outcome.error, types, is_defect=False)
        await run.finish(Finished(RunStatus.FAILED, None, error, run.now()), RunStatus.FAILED)
    else:
        output = run.encode(outcome, "output", types)
        done = Finished(RunStatus.COMPLETED, output, None, run.now())
        await run.finish(done, RunStatus.COMPLETED)


async def _write_interruption(run: LiveRun) -> None:
    """Leave `Interrupted` as the head of the journal, within a bounded time."""
    if run.halted is not None:
        return
    entry = run.interruption(interruption_reason())
    with anyio.move_on_after(5, shield=True):
        with suppress(Halt):
            await run.finish(entry, RunStatus.INTERRUPTED)


def _check_workflow(known: Checkpoint, blueprint: Blueprint) -> None:
    if known.workflow != blueprint.definition.name:
        raise RunConflict(
            known.run_id,
            f"it is a run of workflow {known.workflow!r}, not of {blueprint.definition.name!r}",
        )


def _check_input(known: Checkpoint, input: Tree) -> None:
    if not are_same(known.initial_state, input):
        raise RunConflict(known.run_id, "it was started with another input")


def _completion(known: Checkpoint) -> Finished | None:
    """How a complete run ended; None if it is not complete."""
    return known.finished if known.status is RunStatus.COMPLETED else None


def _last_completion(found: _Found) -> Finished | None:
    """How the run ended when it was last complete; None if it never was.

    What it gave then stands while it is made to go on, and until that has succeeded.
    """
    for entry in reversed(found.journal.entries):
        if isinstance(entry, Finished) and entry.status is RunStatus.COMPLETED:
            return entry
    return None


def _output(completion: Finished, blueprint: Blueprint, run_id: str) -> Any:
    return _decode(completion.output, blueprint.output_types, run_id, "output")


def _context(known: Checkpoint) -> Mapping[str, object]:
    context = _decode(known.context, _NO_TYPES, known.run_id, "context")
    if not isinstance(context, dict):
        raise CorruptCheckpoint(known.run_id, "its context is no mapping")
    return cast("dict[str, object]", context)


def _decode(tree: Tree, types: KnownTypes, run_id: str, what: str) -> Any:
    try:
        return from_tree(tree, path=f"{what}: $", types=types)
    except MalformedValue as error:
        reason = f"its {what} is not what the workflow declares: {error}"
        raise CorruptCheckpoint(run_id, reason) from error
