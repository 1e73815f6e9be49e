"""A replay that shows what a resume would do. It records nothing and executes no step."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Never, TypeVar

import anyio
import anyio.lowlevel

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.entries import Arguments, Entry
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.plan import ResumePlan, Unverified
from effectflow.checkpoint.recording import RecordedStep, Recording
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.stopping import Stopping
from effectflow.checkpoint.store import Message
from effectflow.checkpoint.values import KnownTypes, Tree
from effectflow.effects.clock import Clock
from effectflow.effects.errors import EffectError, Halt, Origin, Parked
from effectflow.effects.nodes import Failed, Step
from effectflow.effects.paths import outermost
from effectflow.effects.scope import Scope

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


class PlannedRun(Run):
    """Replays a run up to the frontier of every flow, and collects what a resume begins there."""

    records = False

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
        self._observers = ()
        self._start: list[str] = []
        self._retry: list[str] = []
        self._skip: list[str] = []
        self._failures: list[tuple[str, object]] = []
        self._waiting: list[str] = []
        self._unverified: list[Unverified] = []

    def plan(
        self, outcome: Any, defect: Exception | None = None, parked: Parked | None = None
    ) -> ResumePlan:
        """Return the plan, once the body has ended with this outcome or defect, or was parked.

        Raises the defect that the body ended in, unless it is the recorded defect of a step.
        """
        recurs: list[str] = []
        if defect is not None and self.writer.halted is None:
            recurs = [path for path, error in self._failures if error is defect]
            if not recurs:
                raise defect
        if outcome.__class__ is Failed:
            recurs = self._origins(outcome)
        return ResumePlan(
            tuple(self._start),
            tuple(self._retry),
            tuple(self._skip),
            tuple(recurs),
            tuple(self._waiting),
            tuple(self._unverified),
            self.writer.halted,
            reason="" if self._start or parked is None else parked.reason or "",
        )

    def park(self, flow: DurableFlow, parked: Parked) -> None:
        if parked.reason is not None and flow.cursor is not None:
            reason = parked.reason
            self._unverified += [Unverified(path, reason) for path in flow.cursor.steps_ahead()]
            parked.is_before_others |= flow.has_ahead(math.inf)

    def _replayed(self, definition: Any, path: str, recorded: RecordedStep, scope: Scope) -> Any:
        if recorded.is_completed:
            self._skip.append(path)
        return super()._replayed(definition, path, recorded, scope)

    def replayed_failure(self, path: str, failure: Failed) -> Failed:
        self._failures.append((path, failure.error))
        return failure.after(Origin(path))

    def _origins(self, failed: Failed) -> list[str]:
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
        return [path for path, error in self._failures if path in lines or id(error) in causes]

    async def _attempt_all(
        self,
        flow: DurableFlow,
        step: Step,
        path: str,
        arguments: Arguments | None,
        recorded: RecordedStep | None,
        env: Any,
        scope: Scope,
    ) -> Any:
        if recorded is not None and recorded.retry_at is not None:
            await self.sleep(path, recorded.retry_at - self.now(), scope)
        if recorded is not None and step.definition.retry is None:
            failed = await self._fails_again(flow, step, path, recorded, env, scope)
            if failed is not None:
                return failed
        self._start.append(path)
        if recorded is not None:
            self._retry.append(path)
            self._skip += self._completed_within(path)
        raise Parked

    async def _fails_again(
        self,
        flow: DurableFlow,
        step: Step,
        path: str,
        recorded: RecordedStep,
        env: Any,
        scope: Scope,
    ) -> Failed | None:
        """Return the failure, or raise the defect, with which the next attempt of a step only ends again.

        Return None if it begins something inside.
        """
        if path not in self.recording.flows:
            return None
        beginning = [self._start, self._retry, self._waiting, self._unverified]
        found = [*beginning, self._skip, self._failures]
        counts = list(map(len, found))
        try:
            outcome = await self.replay_within(flow, step, path, recorded, env, scope)
        except Parked:
            outcome = None
        begins = list(map(len, beginning)) != counts[: len(beginning)]
        if begins or not isinstance(outcome, Failed):
            for noted, count in zip(found, counts, strict=True):
                del noted[count:]
            return None
        return outcome if self._origins(outcome) else self.replayed_failure(path, outcome)

    def _completed_within(self, path: str) -> list[str]:
        """Return the completed steps inside a step, which its next attempt skips."""
        known = self.recording
        return outermost(
            place
            for place, step in known.steps.items()
            if step.is_completed and place.startswith(f"{path}/") and place not in known.left_behind
        )

    def begin_child(self, path: str, *, is_begun: bool) -> None:
        """Note that a resume starts or continues a nested run, or spawns one."""
        self._start.append(path)
        if is_begun:
            self._retry.append(path)
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
        self._waiting.append(path)
        raise Parked
