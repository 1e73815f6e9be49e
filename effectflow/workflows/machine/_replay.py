"""What a recorded attempt makes of a machine: in a run, in its resume, and when a checkpoint is read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.values import KnownTypes, MalformedValue, Tree, from_tree
from effectflow.effects.paths import flow_of
from effectflow.workflows.machine._machine import (
    HistoryEntry,
    Machine,
    MachineMetadata,
    PendingRetry,
)


def pending_of(machine: Machine[Any], transition: str) -> PendingRetry | None:
    """Return what earlier attempts at this transition left to do; None if the next is the first."""
    pending = machine.metadata.pending
    return pending if pending is not None and pending.transition == transition else None


def machine_after(
    machine: Machine[Any], transition: str, record: Mapping[str, Any]
) -> Machine[Any]:
    """Return the machine after an attempt, from the record of the attempt. Pure."""
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


def replay(machine: Machine[Any], checkpoint: Checkpoint, types: KnownTypes) -> Machine[Any]:
    """Return the machine after all attempts that a checkpoint has as completed. Pure."""
    for step in checkpoint.completed_steps:
        # Steps in other flows are part of an action, whose attempt records its outcome.
        if not flow_of(step.step):
            record = decode(checkpoint, step.output, types, step.step)
            machine = machine_after(machine, step.step.partition("#")[0], record)
    return machine


def decode(checkpoint: Checkpoint, tree: Tree, types: KnownTypes, name: str) -> Any:
    """Decode a value of a checkpoint. Raise CorruptCheckpoint for an unknown state."""
    try:
        return from_tree(tree, types=types)
    except MalformedValue as error:
        raise CorruptCheckpoint(checkpoint.run_id, f"{name} is unreadable: {error}") from error
