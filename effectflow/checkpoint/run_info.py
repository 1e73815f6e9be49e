"""Information about the current step and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import urandom
from typing import Any, Never

from effectflow.effects import Effect
from effectflow.effects.nodes import Die, Pure, Suspend
from effectflow.effects.scope import Scope, running_step

__all__ = [
    "CurrentStep",
    "StepInfo",
    "current_step",
    "info_of",
    "run_context",
    "started_version",
    "step_info",
]


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The identity of the running step.

    Attributes:
        run_id: the run.
        step: the step's path within the run.
        attempt: the number of the attempt, from 1.
        idempotency_key: the same for every attempt of this step of this run, and different for any other
            step. Pass it to services that recognize repeated requests.
    """

    run_id: str
    step: str
    attempt: int

    @property
    def idempotency_key(self) -> str:
        from urllib.parse import quote

        return f"{quote(self.run_id, safe='')}:{self.step}"


class CurrentStep:
    """The step that is running. Its info is made when something asks for it, as few steps do.

    Pickled, for an executor, it is made: what makes it may hold a whole state machine.
    """

    __slots__ = ("_attempt", "_info", "_make", "_path", "_run_id")

    def __init__(
        self,
        run_id: str | None,
        path: str,
        attempt: int,
        make: Callable[[str, str, int], StepInfo] | None,
    ) -> None:
        self._run_id = run_id
        self._path = path
        self._attempt = attempt
        self._make = make or StepInfo
        self._info: StepInfo | None = None

    @property
    def info(self) -> StepInfo:
        if self._info is None:
            run_id = self._run_id
            if run_id is None:
                run_id = f"unrecorded-{urandom(16).hex()}"
            self._info = self._make(run_id, self._path, self._attempt)
        return self._info

    def __getstate__(self) -> tuple[None, dict[str, StepInfo]]:
        return None, {"_info": self.info}


def current_step() -> StepInfo:
    """Return the `StepInfo` of the step whose code is running. A plain function, for any code in a step.

    It works in `@step @effect` functions, in the functions that they call, and in worker threads that
    `from_blocking` and anyio start. Raises LookupError outside steps.

    Example:
        >>> from effectflow import current_step, effect, step
        >>> @step
        ... @effect
        ... def charge(env: object, amount: int) -> str:
        ...     return f"{current_step().step}, attempt {current_step().attempt}"
        >>> charge(5).run_sync(None)
        <Success: charge, attempt 1>
    """
    current = running_step.get()
    if not isinstance(current, CurrentStep):
        raise LookupError("current_step() is known only inside the code of a step")
    return current.info


def step_info() -> Effect[object, Never, StepInfo]:
    """Yield the `StepInfo` of the current step. Outside steps it ends in a LookupError.

    A step outside a durable run has one as well, with a random run id.
    """

    def look(scope: Scope) -> Effect[object, Never, StepInfo]:
        info = info_of(scope)
        if info is not None:
            return Pure(info)
        return Die(LookupError("step_info() is known only inside a step: wrap this effect in one"))

    return Suspend(look, ("step_info",))


def info_of(scope: Scope) -> StepInfo | None:
    """Return the info of the current step; None between steps."""
    return scope.step.info if isinstance(scope.step, CurrentStep) else None


def run_context() -> Effect[object, Never, Mapping[str, object]]:
    """Yield the `context` with which the run was started: tenant, user, trace ids.

    It is saved with the run, so a resume has it as well. It is the same in steps and between them, also
    in executors, and cannot be changed. Outside a run it is empty.

    Example:
        >>> from effectflow import run_context
        >>> run_context().map(dict).run_sync(None)
        <Success: {}>
    """
    return _RUN_CONTEXT


_RUN_CONTEXT: Any = Suspend(lambda scope: Pure(scope.context), ("run_context",))


def started_version() -> Effect[object, Never, str | None]:
    """Yield the version of the workflow with which the run was started; None outside runs.

    Code with a new step branches on it, so that runs of the earlier version can continue.

    Example:
        >>> from effectflow import started_version
        >>> started_version().run_sync(None)
        <Success: None>
    """
    return _STARTED_VERSION


_STARTED_VERSION: Any = Suspend(
    lambda scope: Pure(scope.flow.started_version), ("started_version",)
)
