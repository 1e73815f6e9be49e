"""What a job asks of the records of its run: its items, its dead letters, and their retries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from effectflow.checkpoint.errors import StepInputChanged
from effectflow.checkpoint.flow import DurableFlow
from effectflow.effects import Effect
from effectflow.effects.nodes import Perform
from effectflow.effects.paths import child_path
from effectflow.effects.scope import Scope
from effectflow.workflows.mapreduce._results import DeadLetter

MAPPED = "mapped"
"""The step that ends the map phase: once it is complete, the items of the job are known."""

_SET_ASIDE = "dead_letter"


def refuse_new_items(scope: Scope) -> Callable[[str], None]:
    """Return a check of the keys of the job that comes next: none may be new after its map phase.

    The check halts the run with StepInputChanged, before the item begins a step.
    """
    flow = scope.flow
    mapped = None
    if isinstance(flow, DurableFlow):
        mapped = flow.run.recording.steps.get(flow.path_to_come(MAPPED))
    if not isinstance(flow, DurableFlow) or mapped is None or not mapped.is_completed:
        return lambda key: None
    run, path, count = flow.run, flow.path_to_come("map"), mapped.output

    def check(key: str) -> None:
        if child_path(path, key) not in run.recording.flows:
            raise run.writer.halt(
                StepInputChanged(run.run_id, path, f"({count} items)", f"(a new item {key!r})")
            )

    return check


def requested_retries(scope: Scope) -> int:
    """Return how often `retry_dead_letters` was called for the run whose body this is."""
    flow = scope.flow
    return flow.run.recording.reopenings if isinstance(flow, DurableFlow) and not flow.path else 0


def set_aside(letter: DeadLetter[Any]) -> Effect[Any, Any, Any]:
    """Record that an item is a dead letter. This settles its failure: a resume does not retry it."""

    async def record(_: object, scope: Scope) -> object:
        return await scope.flow.decide(scope, _SET_ASIDE, lambda: {"attempts": letter.attempts})

    return Perform(record)


def was_set_aside(scope: Scope) -> bool:
    """Return whether the item is recorded as a dead letter at this place."""
    flow = scope.flow
    return (
        isinstance(flow, DurableFlow) and flow.next_path(_SET_ASIDE) in flow.run.recording.decisions
    )
