"""Crash a run at every entry of its journal, resume it, and compare.

The idea comes from crash-consistency tests of databases and file systems: wherever the process died, a
resumed run must end like one without a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from returns.result import Result

from effectflow.checkpoint import Checkpoint, CheckpointStore, HasCheckpoints, read_checkpoint
from effectflow.stores import MemoryStore
from effectflow.testing.doubles import TestClock
from effectflow.testing.faulty_store import CrashPoint, FaultyStore
from effectflow.workflows import Workflow

Env = TypeVar("Env", bound=HasCheckpoints)
E = TypeVar("E")
Input = TypeVar("Input")
Out = TypeVar("Out")

_RUN = "crash-test"


async def crash_everywhere(
    workflow: Workflow[Env, E, Input, Out], input: Input, make_env: Callable[[CheckpointStore], Env]
) -> list[CrashPoint]:
    """Crash a workflow at every append, resume it each time, and compare with an uninterrupted run.

    It compares the result, the completed steps with their outputs, and the history. Parallel steps may
    end in any order, so completed steps and history are compared by step. The clock of these runs
    stands still, because a resumed run reads the time later; delays end immediately, and timeouts
    expire.

    Parameters:
        workflow: the workflow to run. Its steps must yield the same outputs each time.
        input: the input to start it with.
        make_env: creates an environment around a store, once for each life of the process.

    Returns the points at which the run was crashed. Raises AssertionError, naming the point, if a
    resumed run ended differently.
    """
    whole = FaultyStore(MemoryStore())
    expected = _shown(
        await _live(workflow, input, make_env(whole)), await read_checkpoint(whole, _RUN)
    )
    points = crash_points(whole)
    for point in points:
        store = FaultyStore(MemoryStore(), [point])
        with store.life():
            await _live(workflow, input, make_env(store))
        result = await _live(workflow, input, make_env(store))
        found = _shown(result, await read_checkpoint(store, _RUN))
        for what, value in expected.items():
            if found[what] != value:
                raise AssertionError(
                    f"crashed {point}: the {what} of the resumed run is {found[what]!r}, "
                    f"and that of the whole run {value!r}"
                )
    return points


def crash_points(whole: FaultyStore) -> list[CrashPoint]:
    """Return the crash points before and after each append to a store."""
    appends = sum(call.operation == "append" for call in whole.calls)
    return [
        CrashPoint(append, is_durable)
        for append in range(1, appends + 1)
        for is_durable in (False, True)
    ]


async def _live(
    workflow: Workflow[Env, E, Input, Out], input: Input, env: Env
) -> Result[Out, object]:
    """Run one life of the process. A start with the same id and input continues the run."""
    return await _StoppedClock().run(workflow.start(input, run_id=_RUN), env)


def _shown(result: Result[Any, Any], checkpoint: Checkpoint) -> dict[str, object]:
    return {
        "result": repr(result),
        "completed steps": {step.step: step.output for step in checkpoint.completed_steps},
        "history": {item.step: (item.outcome, item.detail) for item in checkpoint.history},
    }


class _StoppedClock(TestClock):
    """A clock on which every wait ends immediately and the time never changes."""

    def now(self) -> datetime:
        return datetime(2000, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0
