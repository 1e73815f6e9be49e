"""A replay that shows what a resume would do. It records nothing and executes no step."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Never, TypeVar

import anyio
import anyio.lowlevel

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.entries import Entry
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.plan import ResumePlan, Unverified
from effectflow.checkpoint.recording import RecordedStep, Recording
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.step_execution import StepExecution
from effectflow.checkpoint.stopping import Stopping
from effectflow.checkpoint.store import Message
from effectflow.checkpoint.values import KnownTypes, Tree
from effectflow.effects.clock import Clock
from effectflow.effects.errors import EffectError, Halt, Parked
from effectflow.effects.paths import outermost
from effectflow.effects.scope import Scope
from effectflow.effects.trails import Origin, TypedFailure

A = TypeVar("A")


class _NoJournal:
    """Accepts no entries. It keeps the error that would halt a resume."""

    def __init__(self) -> None:
        self.halted: CheckpointError | None = None
        self.is_released = True

    def add(self, entry: Entry) -> int:
        raise AssertionError(f"a plan adds no entries, such as {entry!r}")

    def take(self, *messages: int) -> None:
        """Leave the messages in the mailbox of the run."""

    def halt(self, error: CheckpointError) -> Halt:
        if self.halted is None:
            self.halted = error
        return Halt(self.halted)

    def check(self) -> None:
        if self.halted is not None:
            raise Halt(self.halted)


class _NeverStopping(Stopping):
    """Shields all replays and finalizers, so that a plan is complete."""

    def __init__(self, journal: _NoJournal) -> None:
        super().__init__(None, ())
        self._journal = journal

    def begin(self) -> None:
        """Do nothing: a plan never stops a run."""

    def give_up(self, error: CheckpointError) -> Halt:
        return self._journal.halt(error)

    async def supervised(self, work: Callable[[], Awaitable[A]]) -> A:
        return await work()

    async def finalizing(self, work: Coroutine[Any, Any, A]) -> tuple[A | None, None]:
        try:
            with anyio.CancelScope(shield=True):
                return await work, None
            raise AssertionError("a scope that is not cancelled continues")
        except Parked as parked:
            parked.is_shielded = True
            raise

    @contextmanager
    def gated(self) -> Generator[anyio.CancelScope]:
        with anyio.CancelScope(shield=True) as gate:
            yield gate


@dataclass(slots=True)
class _Notes:
    """What a resume does, as far as the plan has found out; the fields are as in `ResumePlan`.

    Attributes:
        failures: the recorded failures that were replayed, by the paths of their steps.
    """

    start: list[str] = field(default_factory=list[str])
    retry: list[str] = field(default_factory=list[str])
    skip: list[str] = field(default_factory=list[str])
    waiting: list[str] = field(default_factory=list[str])
    unverified: list[Unverified] = field(default_factory=list[Unverified])
    failures: list[tuple[str, object]] = field(default_factory=list[tuple[str, object]])

    def begin(self, path: str, *, is_begun: bool) -> None:
        """Note that a resume begins a step or a run, perhaps again."""
        self.start.append(path)
        if is_begun:
            self.retry.append(path)

    def begins_within(self, step: str) -> bool:
        """Return whether a resume begins anything inside a step, as far as it is known."""
        unverified = (one.step for one in self.unverified)
        return any(
            path.startswith(f"{step}/") for path in (*self.start, *self.waiting, *unverified)
        )

    def forget_within(self, step: str) -> None:
        """Forget the notes about what is inside a step. Other flows may add theirs meanwhile."""
        inside = f"{step}/"
        for paths in (self.start, self.retry, self.skip, self.waiting):
            paths[:] = [path for path in paths if not path.startswith(inside)]
        self.unverified = [one for one in self.unverified if not one.step.startswith(inside)]
        self.failures = [one for one in self.failures if not one[0].startswith(inside)]


class _PlannedExecution(StepExecution):
    """Notes what a resume does with a step, instead of attempting it."""

    __slots__ = ()

    @property
    def _plan(self) -> PlannedRun:
        assert isinstance(self.run, PlannedRun)
        return self.run

    def replayed(self, recorded: RecordedStep) -> Any:
        if recorded.is_completed:
            self._plan.notes.skip.append(self.path)
        return super().replayed(recorded)

    async def attempt_all(self) -> Any:
        plan, path, recorded = self._plan, self.path, self.recorded
        if recorded is not None and recorded.retry_at is not None:
            await plan.sleep(path, recorded.retry_at - plan.now(), self.scope)
        if recorded is not None and self.definition.retry is None:
            failed = await self._fails_again(recorded)
            if failed is not None:
                return failed
        plan.notes.begin(path, is_begun=recorded is not None)
        if recorded is not None:
            plan.notes.skip += self._completed_within()
        raise Parked

    async def _fails_again(self, recorded: RecordedStep) -> TypedFailure | None:
        """Return the failure, or raise the defect, with which the next attempt of a step only ends again.

        Return None if it begins something inside.
        """
        plan, path = self._plan, self.path
        notes = plan.notes
        if path not in self.run.recording.flows:
            return None
        try:
            outcome = await self.replay_within(recorded)
        except Parked:
            outcome = None
        if notes.begins_within(path) or not isinstance(outcome, TypedFailure):
            notes.forget_within(path)
            return None
        return outcome if plan.origins(outcome) else plan.replayed_failure(path, outcome)

    def _completed_within(self) -> list[str]:
        """Return the completed steps inside the step, which its next attempt skips."""
        known = self.run.recording
        return outermost(
            place
            for place, step in known.steps.items()
            if step.is_completed
            and place.startswith(f"{self.path}/")
            and place not in known.left_behind
        )


class PlannedRun(Run):
    """Replays a run up to the frontier of every flow, and notes what a resume begins there."""

    records = False
    execution = _PlannedExecution

    def __init__(
        self,
        run_id: str,
        workflow: str,
        checkpoints: Checkpoints,
        *,
        recording: Recording,
        types: KnownTypes,
        clock: Clock,
        context: Mapping[str, object],
        started_version: str,
    ) -> None:
        writer: Any = _NoJournal()
        super().__init__(
            run_id,
            workflow,
            checkpoints,
            writer=writer,
            recording=recording,
            types=types,
            clock=clock,
            context=context,
            started_version=started_version,
        )
        self.stopping = _NeverStopping(writer)
        self.observers = ()
        self.notes = _Notes()

    def plan(
        self, outcome: Any, defect: Exception | None = None, parked: Parked | None = None
    ) -> ResumePlan:
        """Return the plan, once the body has ended with this outcome or defect, or was parked.

        Raises the defect that the body ended in, unless it is the recorded defect of a step.
        """
        notes = self.notes
        recurs: list[str] = []
        if defect is not None and self.writer.halted is None:
            recurs = [path for path, error in notes.failures if error is defect]
            if not recurs:
                raise defect
        if outcome.__class__ is TypedFailure:
            recurs = self.origins(outcome)
        return ResumePlan(
            tuple(notes.start),
            tuple(notes.retry),
            tuple(notes.skip),
            tuple(recurs),
            tuple(notes.waiting),
            tuple(notes.unverified),
            self.writer.halted,
            reason="" if notes.start or parked is None else parked.reason or "",
        )

    def park(self, flow: DurableFlow, parked: Parked) -> None:
        if parked.reason is not None and flow.cursor is not None:
            reason = parked.reason
            self.notes.unverified += [
                Unverified(path, reason) for path in flow.cursor.steps_ahead()
            ]
            parked.is_before_others |= flow.has_ahead(math.inf)

    def replayed_failure(self, path: str, failure: TypedFailure) -> TypedFailure:
        self.notes.failures.append((path, failure.error))
        return failure.after(Origin(path))

    def origins(self, failed: TypedFailure) -> list[str]:
        """Return the paths of the recorded failures that led to a failure."""
        lines = {line for line in failed.trail if isinstance(line, Origin)}
        causes: set[int] = set()
        cause = failed.error
        while isinstance(cause, BaseException) and id(cause) not in causes:
            # A body may have raised it in an `except` clause.
            causes.add(id(cause))
            cause = cause.__cause__ or cause.__context__
            if isinstance(cause, EffectError):
                causes.add(id(cause.error))
        failures = self.notes.failures
        return [path for path, error in failures if path in lines or id(error) in causes]

    def begin_child(self, path: str, *, is_begun: bool) -> None:
        """Note that a resume starts or continues a nested run, or spawns one."""
        self.notes.begin(path, is_begun=is_begun)
        raise Parked

    async def sleep(self, path: str, seconds: float, scope: Scope) -> None:
        # A wait in an acquisition or a finalizer is not recorded. What follows it may be.
        is_recorded = path in self.recording.waits
        if seconds > 0 and (is_recorded or not scope.flow.has_ahead(scope.limit)):
            await self.wait(path)

    async def next_message(self, flow: DurableFlow, scope: Scope, path: str, topic: str) -> Message:
        await self.mailbox.refresh()
        message = self.mailbox.first(topic)
        return await self.wait(path) if message is None else message

    def take_message(self, path: str, message: Message, value: Tree) -> int:
        # The next wait for this topic receives the next message.
        self.mailbox.take(message)
        return 0

    async def wait(self, path: str) -> Never:
        """Note that a resume waits here."""
        # A flow that an earlier life cancelled does not wait.
        await anyio.lowlevel.checkpoint_if_cancelled()
        self.notes.waiting.append(path)
        raise Parked
