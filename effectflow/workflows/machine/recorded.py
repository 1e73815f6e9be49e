"""What a recorded attempt makes of a machine: the same now, in a resume, and read from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.past import flow_of
from effectflow.checkpoint.values import KnownTypes, MalformedValue, Tree, from_tree
from effectflow.workflows.machine.history import HistoryEntry
from effectflow.workflows.machine.machine import Machine, MachineMetadata, PendingRetry

__all__ = ["attempts_of", "machine_after", "pending_of", "state_of"]


def pending_of(machine: Machine[Any], transition: str) -> PendingRetry | None:
    """What earlier attempts at a transition have left to a machine; None if the next is the first."""
    pending = machine.metadata.pending
    return pending if pending is not None and pending.transition == transition else None


def machine_after(
    machine: Machine[Any], transition: str, record: Mapping[str, Any]
) -> Machine[Any]:
    """The machine after the attempt of which this was recorded. Pure."""
    pending, before, ended = pending_of(machine, transition), machine.metadata, record["ended"]
    number = 1 if pending is None else pending.attempts + 1
    created_at = before.created_at or record["began"]
    attempts = {
        **before.total_attempts,
        transition: before.total_attempts.get(transition, 0) + 1,
    }
    if record["outcome"] == "retry":
        since = record["began"] if pending is None else pending.since
        retry_at = ended + timedelta(seconds=record["delay"])
        again = PendingRetry(transition, number, record["feedback"], since, retry_at)
        metadata = MachineMetadata(created_at, ended, attempts, again)
        return Machine(machine.initial, machine.current, machine.history, metadata, machine.form)
    state, reason = record["state"], record.get("reason")
    entry = HistoryEntry(transition, machine.current, state, ended, number, reason)
    metadata = MachineMetadata(created_at, ended, attempts, None)
    history = machine.history.appended(entry)
    return Machine(machine.initial, state, history, metadata, machine.form)


def attempts_of(checkpoint: Checkpoint, types: KnownTypes) -> list[tuple[str, Mapping[str, Any]]]:
    """The attempts that a run has completed, oldest first: the transition, and what was recorded."""
    return [
        (step.step.partition("#")[0], state_of(checkpoint, step.output, types, step.step))
        for step in checkpoint.completed_steps
        # The steps that an action is made of are within its attempt.
        if not flow_of(step.step)
    ]


def state_of(checkpoint: Checkpoint, tree: Tree, types: KnownTypes, what: str) -> Any:
    """What a checkpoint says. Raises CorruptCheckpoint for a state that the definition does not know."""
    try:
        return from_tree(tree, types=types)
    except MalformedValue as error:
        raise CorruptCheckpoint(checkpoint.run_id, f"{what} is unreadable: {error}") from error
