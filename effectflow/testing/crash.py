"""Stop a run dead at every entry of its journal in turn, resume it, and compare.

The idea is from crash-consistency testing of databases and file systems: whatever point the process
died at, what comes after the resume must be what would have come without the crash.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from returns.result import Result

from effectflow.checkpoint import Checkpoint, CheckpointStore, HasCheckpoints, read_checkpoint
from effectflow.stores import MemoryStore
from effectflow.testing.clock import TestClock
from effectflow.testing.faulty_store import CrashPoint, FaultyStore
from effectflow.workflows import Workflow

__all__ = ["crash_everywhere", "crash_points"]

Env = TypeVar("Env", bound=HasCheckpoints)
E = TypeVar("E")
Input = TypeVar("Input")
Out = TypeVar("Out")

_RUN = "crash-test"


async def crash_everywhere(
    workflow: Workflow[Env, E, Input, Out],
    input: Input,
    make_env: Callable[[CheckpointStore], Env],
) -> list[CrashPoint]:
    """Crash a workflow at every append, resume it each time, and compare with the whole run.

    Compared are the result, the completed steps with their outputs, and the history. Steps that run
    side by side may end in any order, so order counts only within one flow: both are compared by step.
    The clock of all these runs tells one time for ever, as what a run does again it does later; delays
    pass at once, and timeouts strike.

    Parameters:
        workflow: what to run. Its steps must give the same outputs each time.
        input: what to start it with.
        make_env: an environment around a store; called once for each life of the process.

    Gives the points at which the run was crashed. Raises AssertionError, naming the point, where a
    resumed run ended otherwise.
    """
    whole = FaultyStore(MemoryStore())
    expected = _shown(await _live(workflow, input, make_env(whole)), await _end_of(whole))
    points = crash_points(whole)
    for point in points:
        store = FaultyStore(MemoryStore(), [point])
        with store.life():
            await _live(workflow, input, make_env(store))
        result = await _live(workflow, input, make_env(store))
        found = _shown(result, await _end_of(store))
        for what, value in expected.items():
            if found[what] != value:
                raise AssertionError(
                    f"crashed {point}: the {what} of the resumed run is {found[what]!r}, "
                    f"and that of the whole run {value!r}"
                )
    return points


def crash_points(whole: FaultyStore) -> list[CrashPoint]:
    """Before and after each append that a store was asked for."""
    appends = sum(call.operation == "append" for call in whole.calls)
    return [
        CrashPoint(append, is_durable)
        for append in range(1, appends + 1)
        for is_durable in (False, True)
    ]


async def _live(
    workflow: Workflow[Env, E, Input, Out], input: Input, env: Env
) -> Result[Out, object]:
    """One life of the process: starting again with the same id and input takes up the run."""
    return await _StoppedClock().run(workflow.start(input, run_id=_RUN), env)


async def _end_of(store: CheckpointStore) -> Checkpoint:
    return await read_checkpoint(store, _RUN)


def _shown(result: Result[Any, Any], checkpoint: Checkpoint) -> dict[str, object]:
    return {
        "result": repr(result),
        "completed steps": {step.step: step.output for step in checkpoint.completed_steps},
        "history": {item.step: (item.outcome, item.detail) for item in checkpoint.history},
    }


class _StoppedClock(TestClock):
    """Wakes whoever waits, and tells the same time ever after."""

    def now(self) -> datetime:
        return datetime(2000, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0
