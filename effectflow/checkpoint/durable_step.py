"""`with_checkpointing`: any effect as a durable step, itself composed from effects."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from os import urandom
from typing import Any, Never, TypeVar

from returns.result import Failure, Result

from effectflow.checkpoint.entries import (
    Arguments,
    BeforeStep,
    Completed,
    ErrorRecord,
    Failed,
)
from effectflow.checkpoint.errors import (
    CorruptCheckpoint,
    NotSerializable,
    OutcomeUnknown,
    StepInputChanged,
)
from effectflow.checkpoint.events import StepSkipped
from effectflow.checkpoint.failures import is_exact, read_error, write_error
from effectflow.checkpoint.interruption import interruption_reason
from effectflow.checkpoint.live_run import LiveRun
from effectflow.checkpoint.past import PastStep
from effectflow.checkpoint.shown import repr_of
from effectflow.checkpoint.values import KnownTypes, MalformedValue, from_tree
from effectflow.effects import Defect, Effect, Exit, Interruption
from effectflow.effects.errors import LeftToResume
from effectflow.effects.nodes import (
    AndThen,
    Die,
    Fail,
    InScope,
    Named,
    OnExit,
    Perform,
    Pure,
    Suspend,
)
from effectflow.effects.scope import Scope

__all__ = [
    "StepDefinition",
    "StepInfo",
    "durable",
    "info_of",
    "reach_step",
    "step_info",
    "with_checkpointing",
]

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")

AnyEffect = Effect[Any, Any, Any]

_NAME = re.compile(r"[^/\[\]#\x00-\x1f\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class StepInfo:
    """Where the running step stands.

    Attributes:
        run_id: the run.
        step: the step's path within the run.
        attempt: how often it was begun, from 1.
        idempotency_key: the same for every attempt of this step of this run, and for no other: hand it
            to services that drop a request that they have seen before.
    """

    run_id: str
    step: str
    attempt: int

    @property
    def idempotency_key(self) -> str:
        return f"{self.run_id}:{self.step}"


def step_info() -> Effect[object, Never, StepInfo]:
    """Yields the `StepInfo` of the step around it. Outside any step it ends in a LookupError.

    A step that is run outside a durable run has one as well, with a run id made up for the occasion.
    """

    def look(scope: Scope) -> Effect[object, Never, StepInfo]:
        info = info_of(scope)
        if info is not None:
            return Pure(info)
        return Die(LookupError("step_info() is known only inside a step: wrap this effect in one"))

    return Suspend(look, ("step_info",))


def info_of(scope: Scope) -> StepInfo | None:
    """What the step around a flow may know of itself; None between steps."""
    return scope.step.info if isinstance(scope.step, _CurrentStep) else None


class _CurrentStep:
    """The step that is running. What it may know of itself is made when it asks, as few steps do.

    Pickled, for an executor, it is made: what makes it may hold a whole state machine.
    """

    __slots__ = ("_attempt", "_info", "_make", "_path", "_run_id")

    def __init__(
        self, run_id: str | None, path: str, attempt: int, make: Callable[[str, str, int], StepInfo]
    ) -> None:
        self._run_id = run_id
        self._path = path
        self._attempt = attempt
        self._make = make
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


@dataclass(frozen=True)
class StepDefinition:
    """What is known of a step before it runs.

    Attributes:
        name: its name; no `/`, `[`, `]`, `#` or control character, which paths are made with, and no
            lone surrogate, which no encoding can hold.
        types: the classes that its output and errors may be made of.
        retryable: whether a failure is worth another attempt by a resume; yes if None.
        at_most_once: never to be run again without being told, when its outcome is unknown.
    """

    name: str
    types: KnownTypes = field(default_factory=KnownTypes.of)
    retryable: bool | Callable[[Any], bool] | None = None
    at_most_once: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name!r} cannot name a step: a name is not empty, and has no '/', '[', ']', "
                "'#', control character or lone surrogate"
            )

    def is_retryable(self, error: object) -> bool:
        if callable(self.retryable):
            return self.retryable(error)
        return self.retryable is not False


def with_checkpointing(
    step: str,
    effect: Effect[Env, E, A],
    *,
    output: type[A] | None = None,
    error: object = None,
    retryable: bool | Callable[[E], bool] | None = None,
    at_most_once: bool = False,
) -> Effect[Env, E, A]:
    """Make an effect a durable step of the run that it is part of.

    1. If the run's journal says that this step completed, yield the recorded output; run nothing.
    2. Otherwise append `BeforeStep`, wait until it is durable, and run the effect.
    3. On success append `Completed`; on failure or defect `Failed`; on interruption `Interrupted`.

    A checkpoint that cannot be saved ends the run: the body cannot catch it, and `start` or `resume`
    fails with the `CheckpointError`. Outside a run the effect just runs.

    Parameters:
        step: the step's name. Its identity is its path: the name, which occurrence of it this is in
            its flow, and the parallel operators around it.
        effect: what to run.
        output: the type of its value, needed to rebuild classes; plain data needs none.
        error: the type of its errors, needed to rebuild one that the workflow handled.
        retryable: whether a resume runs it again after a failure; a predicate is given the error.
            True if None, or if the predicate raises.
        at_most_once: after a crash in the middle of it, fail with OutcomeUnknown instead of running
            it again.
    """
    definition = StepDefinition(step, KnownTypes.of(output, error), retryable, at_most_once)
    return durable(definition, effect)


Effect.make_durable = staticmethod(with_checkpointing)


def durable(
    definition: StepDefinition,
    effect: AnyEffect,
    describe_arguments: Callable[[], Arguments] | None = None,
) -> AnyEffect:
    """`effect` as the step of this definition, called with these arguments."""

    def reach(scope: Scope) -> AnyEffect:
        return reach_step(scope, definition, effect, describe_arguments)

    return Suspend(reach, ("step", definition.name))


def reach_step(
    scope: Scope,
    definition: StepDefinition,
    effect: AnyEffect,
    describe_arguments: Callable[[], Arguments] | None = None,
    make_info: Callable[[str, str, int], StepInfo] = StepInfo,
) -> AnyEffect:
    """What a flow that has come to a durable step is to do.

    `make_info` makes what the step may know of itself: of the run's id, the step's path, the attempt.
    """
    run = scope.recorder
    path = scope.next_path(definition.name)
    if not isinstance(run, LiveRun):
        inside = scope.inside_step(path, _CurrentStep(None, path, 1, make_info))
        return InScope(Named(effect, path, f"in step {path!r}"), inside)
    run.check()
    if scope.is_stopping:
        raise LeftToResume(f"step {path!r}")
    scope.come_to_step()
    try:
        arguments = describe_arguments() if describe_arguments else None
    except NotSerializable as error:
        raise run.halt(error) from error
    past = run.past.steps.get(path)
    if past is not None:
        settled = _settled(run, definition, path, past, arguments)
        if settled is not None:
            return settled
    attempt = past.attempts + 1 if past else 1
    inside = scope.inside_step(path, _CurrentStep(run.run_id, path, attempt, make_info))
    return _attempt(run, definition, InScope(effect, inside), path, attempt, arguments)


def _settled(
    run: LiveRun,
    definition: StepDefinition,
    path: str,
    past: PastStep,
    arguments: Arguments | None,
) -> AnyEffect | None:
    """What the journal already says of this step, or None if it is to be run."""
    if past.is_completed:
        _check_arguments(run, path, past.arguments, arguments)
        run.last_completed = path
        run.notify(StepSkipped(run.run_id, path, past.output))
        try:
            return Pure(from_tree(past.output, path=f"{path}: $", types=definition.types))
        except MalformedValue as error:
            reason = f"the output of step {path!r} is not what the step declares: {error}"
            raise run.halt(CorruptCheckpoint(run.run_id, reason)) from error
    if past.error is not None and (past.was_handled or not past.retryable):
        try:
            error = read_error(past.error, path, definition.types)
        except NotSerializable as unreadable:
            raise run.halt(unreadable) from unreadable
        run.notify(StepSkipped(run.run_id, path, past.output))
        return Die(error) if past.error.is_defect else Fail(error)
    if past.is_unknown and definition.at_most_once and not run.force:
        raise run.halt(OutcomeUnknown(run.run_id, path))
    return None


def _check_arguments(
    run: LiveRun, path: str, recorded: Arguments | None, current: Arguments | None
) -> None:
    if recorded is None or current is None or recorded.digest == current.digest:
        return
    raise run.halt(StepInputChanged(run.run_id, path, recorded.shown, current.shown))


def _attempt(
    run: LiveRun,
    definition: StepDefinition,
    effect: AnyEffect,
    path: str,
    attempt: int,
    arguments: Arguments | None,
) -> AnyEffect:
    """Run the step once, between its entries."""
    began = 0.0

    async def begin(_env: object, _scope: Scope) -> None:
        nonlocal began
        began = run.clock.monotonic()
        entry = BeforeStep(path, attempt, arguments, run.now())
        await run.before_step(entry, at_once=definition.at_most_once)

    def succeed(value: object) -> AnyEffect:
        # Of the time of day there is no telling how long it took: it may be set back.
        duration = run.clock.monotonic() - began
        output = run.encode(value, path, definition.types)
        run.completed(Completed(path, output, duration, run.now()))
        return Pure(value)

    note = f"in step {path!r} of run {run.run_id!r}, attempt {attempt}"
    guarded = OnExit(Named(effect, path, note), partial(_end, run, definition, path))
    return AndThen(AndThen(Perform(begin), lambda _: guarded), succeed)


def _end(run: LiveRun, definition: StepDefinition, path: str, ended: Exit[Any, Any]) -> AnyEffect:
    """The effect that writes down how a step ended, if it did not succeed."""
    if isinstance(ended, Result) and not isinstance(ended, Failure):
        return _NOTHING
    if run.halted is not None:
        return _NOTHING
    if isinstance(ended, Interruption):
        reason = interruption_reason()
        return Perform(lambda _env, _scope: run.interrupted(path, reason))
    is_defect = isinstance(ended, Defect)
    error = ended.exception if is_defect else ended.failure()
    record = write_error(error, definition.types, is_defect=is_defect)
    is_retryable, problem = True, None
    if not is_defect:
        try:
            is_retryable = definition.is_retryable(error)
        except Exception as raised:
            problem = raised
    failed = Failed(path, record, is_retryable, at=run.now())
    unreadable = _unreadable(error, record, definition, path)
    write: AnyEffect = Perform(lambda _env, _scope: run.failed(failed, unreadable))
    if problem is None:
        return write
    # That the predicate is broken must not keep the failure out of the journal.
    return AndThen(write, lambda _: Die(problem))


def _unreadable(
    error: object, record: ErrorRecord, definition: StepDefinition, path: str
) -> NotSerializable | None:
    """Why a resume could not have this error again, or None if it could."""
    try:
        again = read_error(record, path, definition.types)
    except NotSerializable as unreadable:
        return unreadable
    if is_exact(error, record, again, definition.types):
        return None
    reason = f"its failure {repr_of(error)} would come back as {repr_of(again)}"
    return NotSerializable(path, reason)


_NOTHING = Pure(None)
