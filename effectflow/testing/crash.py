"""Crash a run at every entry of its journal, resume it, and compare.

The idea comes from crash-consistency tests of databases and file systems: wherever the process died, a
resumed run must end like one without a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, TypeVar

from returns.result import Result

from effectflow.checkpoint import (
    Checkpoint,
    CheckpointStore,
    HasCheckpoints,
    read_checkpoint,
    read_entries,
)
from effectflow.effects.resources import Made, entered
from effectflow.runs import Workflow
from effectflow.stores import MemoryStore
from effectflow.testing.doubles import TestClock
from effectflow.testing.faulty_store import CrashPoint, FaultyStore, StepAppend, Write, step_append

Env = TypeVar("Env", bound=HasCheckpoints)
E = TypeVar("E")
Input = TypeVar("Input")
Out = TypeVar("Out")

_RUN = "crash-test"


async def crash_everywhere(
    workflow: Workflow[Env, E, Input, Out],
    input: Input,
    environment: Callable[[CheckpointStore], Made[Env]],
    *,
    at: Iterable[StepAppend] | None = None,
) -> list[CrashPoint]:
    """Crash a workflow at every write, resume it each time, and compare with an uninterrupted run.

    A write is an append, the creation of a run, or a message to a run.

    With `at`, crash it only at the appends `before` and `after` certain steps. A name stands for all
    steps of that name, and a path for one of them; steps within other steps count too::

        await crash_everywhere(checkout, cart, environment, at=[before("charge"), after("charge")])

    It compares the result, the completed steps with their outputs, and the history. Parallel steps may
    end in any order, so completed steps and history are compared by step. The clock of these runs
    stands still, because a resumed run reads the time later; delays end immediately, and timeouts
    expire.

    Parameters:
        workflow: the workflow to run. Its steps must yield the same outputs each time.
        input: the input to start it with.
        environment: makes the environment from a store, once for each life of the process: a function, an
            async function, or one that returns a context manager or an async one.
        at: the appends to crash at; None for all writes.

    Returns the points at which the run was crashed, two for each write: just before it and just after
    it. Raises AssertionError, naming the point, if a resumed run ended differently, and ValueError,
    naming the steps of the run, if it has no such step.
    """
    whole = FaultyStore(MemoryStore())
    expected = await _ending(workflow, input, environment, whole)
    points = crash_points(whole) if at is None else await crash_points_at(whole, at)
    met: list[CrashPoint] = []
    for point in points:
        store = FaultyStore(MemoryStore(), [point])
        with store.life():
            await _live(workflow, input, environment, store)
        if store.unmet:
            # The whole run may have taken longer, and have saved one by one what was saved together now.
            continue
        met.append(point)
        found = await _ending(workflow, input, environment, store)
        for what, value in expected.items():
            if found[what] != value:
                raise AssertionError(
                    f"crashed {point}: the {what} of the resumed run is {found[what]!r}, "
                    f"and that of the whole run {value!r}"
                )
    return met


def crash_points(whole: FaultyStore) -> list[CrashPoint]:
    """Return the crash points before and after each write to a store."""
    counts: Counter[Write] = Counter()
    points: list[CrashPoint] = []
    for operation in (call.operation for call in whole.calls):
        if operation in ("append", "create", "send"):
            counts[operation] += 1
            points += [
                CrashPoint(counts[operation], is_durable, operation) for is_durable in (False, True)
            ]
    return points


async def crash_points_at(whole: FaultyStore, at: Iterable[StepAppend]) -> list[CrashPoint]:
    """Return the crash points before and after the appends of certain steps to a store.

    Raises ValueError, naming the steps in the store, if it has no such step.
    """
    runs = dict.fromkeys(call.run_id for call in whole.calls if call.operation == "append")
    seen: list[StepAppend] = []
    for run_id in filter(None, runs):
        entries = await read_entries(whole, run_id, whole.seal)
        appends = (step_append(run_id, entry) for entry in entries)
        seen += dict.fromkeys(append for append in appends if append is not None)
    points: list[CrashPoint] = []
    for wanted in at:
        found = [append for append in seen if wanted.includes(append)]
        if not found:
            steps = dict.fromkeys(each.step for each in seen if each.part == wanted.part)
            names = ", ".join(map(repr, steps)) or "none"
            raise ValueError(f"the run has not reached {wanted}. The steps that it has: {names}")
        points += [
            CrashPoint(append, is_durable) for append in found for is_durable in (False, True)
        ]
    return points


async def _ending(
    workflow: Workflow[Env, E, Input, Out],
    input: Input,
    environment: Callable[[CheckpointStore], Made[Env]],
    store: FaultyStore,
) -> dict[str, object]:
    """Run the last life of the process. Return the parts to compare."""
    result = await _live(workflow, input, environment, store)
    return _shown(result, await read_checkpoint(store, _RUN, store.seal))


async def _live(
    workflow: Workflow[Env, E, Input, Out],
    input: Input,
    environment: Callable[[CheckpointStore], Made[Env]],
    store: FaultyStore,
) -> Result[Out, object]:
    """Run one life of the process. A start with the same id and input continues the run."""
    async with AsyncExitStack() as stack:
        env = await entered(environment(store), stack)
        store.seal = env.checkpoints.seal
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
