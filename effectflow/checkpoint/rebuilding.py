"""Make a run from entries, or from its `Checkpoint`, so that a store without its journal continues it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from effectflow.checkpoint.checkpoint import Checkpoint, summary_of
from effectflow.checkpoint.entries import (
    FORMAT,
    BeforeStep,
    Completed,
    Entry,
    Interrupted,
    Started,
)
from effectflow.checkpoint.integrity import UNSIGNED, Seal, first_digest
from effectflow.checkpoint.journal_reader import ExportedRun
from effectflow.checkpoint.run_info import RunDetails, RunStatus
from effectflow.checkpoint.shared_parts import SharedParts
from effectflow.effects.paths import StepPath, steps_around


def rebuilt_run(checkpoint: Checkpoint, seal: Seal = UNSIGNED) -> ExportedRun:
    """Return a run that continues from a checkpoint, for `import_run` into a store. Pure.

    A resume of it skips the completed steps. A checkpoint has only these: if the run has also recorded
    waits, times, messages, spawned runs or failures that its code handled, and more steps after that,
    the resume is refused with DefinitionChanged before anything is executed. The export of a run has
    everything. The failure of a failed run is forgotten, so the step that failed is tried again.

    Raises ValueError for a run that is completed or cancelled.

    Example:
        >>> from effectflow.checkpoint import import_run, rebuilt_run
        >>> async def adopt(store, text):
        ...     await import_run(store, rebuilt_run(Checkpoint.from_json(text)))
    """
    if checkpoint.status.has_ended:
        raise ValueError(
            f"run {checkpoint.run_id!r} is {checkpoint.status}: there is nothing to continue"
        )
    entries = [*_entries(checkpoint)]
    started = entries[0]
    assert isinstance(started, Started)
    bodies = sealed_entries(checkpoint.run_id, entries, seal)
    details = RunDetails(checkpoint.kind, checkpoint.definition.version)
    summary = summary_of(started, RunStatus.INTERRUPTED, due_at=None, details=details)
    return ExportedRun(checkpoint.run_id, summary, bodies)


def sealed_entries(run_id: str, entries: Iterable[Entry], seal: Seal) -> tuple[bytes, ...]:
    """Return the entries of a run that is made, as a store keeps them. Outputs have all their parts."""
    digest, bodies, shared = first_digest(run_id), list[bytes](), SharedParts()

    def shorten(completed: Completed) -> Completed:
        return shared.shorten(completed, len(bodies) + 1)

    for entry in entries:
        if isinstance(entry, Completed) and entry.shared is not None:
            entry = replace(entry, shared=None)
        body, digest = seal.close(entry, digest, shorten=shorten)
        bodies.append(body)
    return tuple(bodies)


def _entries(checkpoint: Checkpoint) -> Iterator[Entry]:
    """Yield a journal whose steps completed one after another, in the order in which they did."""
    definition, attempts = checkpoint.definition, checkpoint.metadata.attempts
    yield Started(
        run_id=checkpoint.run_id,
        workflow=checkpoint.workflow,
        kind=checkpoint.kind,
        version=definition.version,
        fingerprint=definition.fingerprint,
        steps=definition.steps,
        input=checkpoint.initial_state,
        context=checkpoint.context,
        journal=FORMAT,
        at=checkpoint.created_at,
        structure=definition.structure,
        module=checkpoint.module,
    )
    unknown, begun = checkpoint.metadata.unknown or (), set[str]()
    items = {**(checkpoint.metadata.items or {})}

    def begins(step: str, at: float, turn: int) -> Iterator[Entry]:
        for path in (*reversed([*steps_around(step, attempts)]), step):
            if path not in begun:
                begun.add(path)
                yield BeforeStep(
                    path,
                    attempts[path],
                    at,
                    at_most_once=path in unknown,
                    turn=turn,
                    items=items.pop(str(StepPath(path).flow.operator), None),
                )

    turn = 0
    for turn, done in enumerate(checkpoint.completed_steps, 1):
        at = done.completed_at
        yield from begins(done.step, at - done.duration, turn - 1)
        yield Completed(done.step, done.output, done.duration, at=at, turn=turn)
    for step in unknown:
        yield from begins(step, checkpoint.updated_at, turn)
    reason = "rebuilt from a checkpoint"
    yield Interrupted(None, False, reason, checkpoint.updated_at, turn=turn)
