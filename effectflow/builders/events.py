"""Events of the builders, and how a workflow reports them: in a durable run, or without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.durable_fiber import DurableFiber
from effectflow.checkpoint.observers import CheckpointEvent, Observer, tell
from effectflow.effects import Exit
from effectflow.effects.nodes import AnyEffect, FromFn, OnExit, Suspend
from effectflow.effects.paths import step_path
from effectflow.effects.scope import Scope


@dataclass(frozen=True, slots=True)
class WorkflowEvent(CheckpointEvent):
    """What a workflow of a builder reports.

    Attributes:
        run_id: the run; None if the workflow runs without a store.
        workflow: the workflow's name.
    """

    run_id: str | None
    workflow: str


@dataclass(frozen=True, slots=True)
class Reporter:
    """Tells observers about a run; its id is None without a durable run."""

    run_id: str | None
    observers: Sequence[Observer]

    def report(self, event: CheckpointEvent) -> None:
        """Tell the observers."""
        tell(self.observers, event)

    def around(
        self,
        work: AnyEffect,
        began: CheckpointEvent,
        ended: Callable[[Exit[Any, Any]], CheckpointEvent],
    ) -> AnyEffect:
        """Report the beginning of work, and return the effect that does it and reports its end."""
        self.report(began)
        return OnExit(work, lambda end: FromFn(lambda _: self.report(ended(end))))


def path_of(scope: Scope, name: str, number: int) -> str:
    """Return the path of a step. Without a durable run it is the one that the step would have."""
    fiber = scope.fiber
    return fiber.path if isinstance(fiber, DurableFiber) else step_path("", name, number)


def with_reporter(
    make: Callable[[Reporter | None, Scope], AnyEffect], shown: tuple[object, ...] = ()
) -> AnyEffect:
    """Return an effect that asks `make` for its work when it runs: with a reporter if anyone observes.

    The observers are those of the run. Outside a run, they are those of the environment's `checkpoints`.
    A plan has none. `shown` is as in `Suspend`.
    """

    def reach(env: Any, scope: Scope) -> AnyEffect:
        return make(_reporter_of(env, scope), scope)

    return Suspend(reach, shown)


def _reporter_of(env: Any, scope: Scope) -> Reporter | None:
    fiber = scope.fiber
    if isinstance(fiber, DurableFiber):
        run_id: str | None = fiber.run.run_id
        observers = fiber.run.observers
    else:
        run_id, checkpoints = None, getattr(env, "checkpoints", None)
        observers = checkpoints.observers if isinstance(checkpoints, Checkpoints) else ()
    return Reporter(run_id, observers) if observers else None
