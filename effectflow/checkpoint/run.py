"""A durable run that this process drives. It executes and records steps."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar, cast

import anyio
import anyio.lowlevel

from effectflow.checkpoint.activity import Activity
from effectflow.checkpoint.attendant import Drain
from effectflow.checkpoint.branches import DurableBranches
from effectflow.checkpoint.cancellation import Cancellation
from effectflow.checkpoint.changes import woken_by
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.entries import (
    Arguments,
    BeforeStep,
    CancelRequested,
    Completed,
    ErrorRecord,
    Failed,
    Interrupted,
    Resumed,
    Signalled,
)
from effectflow.checkpoint.errors import (
    CLASS_CHANGED,
    CorruptCheckpoint,
    NotSerializable,
    OutcomeUnknown,
    StepInputChanged,
)
from effectflow.checkpoint.failures import read_failure, write_end
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.mailbox import Mailbox
from effectflow.checkpoint.observers import CheckpointEvent, StepSkipped, tell
from effectflow.checkpoint.recording import RecordedStep, Recording
from effectflow.checkpoint.replay import compressed
from effectflow.checkpoint.schema import LATEST
from effectflow.checkpoint.settling import UnsettledFailures
from effectflow.checkpoint.step import CurrentStep
from effectflow.checkpoint.stopping import Stopping, interruption_reason
from effectflow.checkpoint.store import CANCEL, Message
from effectflow.checkpoint.values import (
    KnownTypes,
    MalformedValue,
    Tree,
    check_savable,
    from_tree,
    mismatch_of,
    of_type,
    plain_json,
    to_tree,
)
from effectflow.effects.clock import Clock, SystemClock
from effectflow.effects.errors import (
    EffectError,
    ExecutorError,
    Halt,
    Parked,
    RetryExhausted,
    TracedError,
    add_note,
)
from effectflow.effects.event_loop import is_cancellation
from effectflow.effects.interpreter import exit_of, exit_of_raised, interpret
from effectflow.effects.nodes import Failed as Failure, Step
from effectflow.effects.operators import Operator, run_limited
from effectflow.effects.scope import Scope, running_step

logger = logging.getLogger(__name__)

A = TypeVar("A")

_ANNOTATE = (
    "A resume reads only values of the declared type: correct the annotation of the function that "
    "returns it, or the value"
)
_PENDING: Final = object()
"""Stands for the outcome of a step that must be executed."""


class Around(Protocol):
    """The outer run of a nested run, and the flow that reached the nested run."""

    @property
    def run(self) -> Run: ...

    @property
    def is_shielded(self) -> bool:
        """Whether it is in an acquisition or a finalizer, which no cancellation reaches."""
        ...

    @property
    def is_in_step(self) -> bool:
        """Whether it is in the body of a step, whose next attempt may replace the nested run."""
        ...

    @property
    def is_pinned(self) -> bool:
        """Whether it is in a step of an outer run that a suspension must not cut off."""
        ...

    async def begin_cancellation(self) -> None:
        """Settle the decision of the outer run that cancels the nested run."""
        ...

    def open_gate(self) -> None:
        """Let cancellations through to the nested run, which protects its own replay from now on."""
        ...


class Run:
    """One life of a durable run.

    Attributes:
        run_id, workflow: the id of the run and the name of its workflow.
        recording: what earlier lives recorded.
        writer: adds entries to the journal.
        types: the classes that may occur in outputs and errors of the workflow.
        records: whether anything is recorded; False in a plan.
        force: whether the run continues even if the workflow changed or an outcome is unknown.
        around: the outer run of a nested run, or None.
        outer_operators: the operators of the outer run that may cancel this one.
        cancelled_at: the entry with which an operator of the outer run cancelled this one, or None.
        last_completed: the path of the step that completed last.
        failures: the failures that nothing has settled.
        stopping: whether it is being stopped from outside.
        activity: the flows that are busy, and what the others wait for; shared with the outer run.
        mailbox: the messages that were sent to the run.
        cancellation: the operator around the body that decides when a message requests a cancellation;
            None if the run does not look for such messages.
        drain: asks the runs of a worker to begin nothing more; None outside of workers.
        spawned: the ids of the spawned runs that are cancelled with this one, by the entries that began
            them.
    """

    records = True

    def __init__(
        self,
        run_id: str,
        workflow: str,
        checkpoints: Checkpoints,
        *,
        writer: JournalWriter,
        recording: Recording,
        types: KnownTypes,
        clock: Clock,
        context: Mapping[str, object],
        started_version: str,
        force: bool = False,
        around: Around | None = None,
        outer_operators: tuple[Operator, ...] = (),
    ) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.checkpoints = checkpoints
        self.writer = writer
        self.recording = recording
        self.types = types
        self.clock = clock
        self.context = MappingProxyType(dict(context))
        self.started_version = started_version
        self.force = force
        self.around = around
        self.outer_operators = outer_operators
        self.stopping = Stopping(None if around is None else around.run.stopping, outer_operators)
        self.activity = Activity() if around is None else around.run.activity
        self.mailbox = Mailbox(run_id, checkpoints, writer)
        self.cancellation: Cancellation | None = None
        self.drain: Drain | None = None if around is None else around.run.drain
        self.spawned = dict(recording.spawned)
        self.last_completed: str | None = None
        # The system clock is read without creating a date.
        self.now = time.time if type(clock) is SystemClock else self._now
        self.cancelled_at = None if around is None else recording.cancelled_at
        self._observers = checkpoints.observers
        self._policy = checkpoints.policy
        self.failures = UnsettledFailures(writer)
        self._cut_off: dict[str, None] = {}
        self._interrupted_at: int | None = None
        self._savable: dict[str, Any] = {}

    @property
    def is_shielded(self) -> bool:
        """Whether it is in an acquisition or a finalizer of an outer run."""
        return self.around is not None and self.around.is_shielded

    @property
    def is_pinned(self) -> bool:
        """Whether it is in a step of an outer run that a suspension must not cut off."""
        return self.around is not None and self.around.is_pinned

    @property
    def may_record(self) -> bool:
        """Whether decisions and waits are recorded: not in a plan, nor while the run is being stopped."""
        return self.records and not self.stopping.has_begun

    # Execution of steps.

    def execute(
        self, flow: DurableFlow, step: Step, env: Any, scope: Scope
    ) -> Coroutine[Any, Any, Any]:
        """Execute a step, unless its recorded outcome stands. Return its value or a `Failure`.

        Not a coroutine itself, because each one around a step makes it measurably slower.
        """
        self.writer.check()
        definition = step.definition
        path = flow.next_path(definition.name)
        if definition.code is not None:
            flow.check_function(definition.name, definition.code, definition.function)
        recorded = self.recording.steps.get(path) if flow.reach(path, scope) else None
        arguments = self._arguments_of(step)
        if recorded is not None:
            return self._execute_again(flow, step, path, arguments, recorded, env, scope)
        cancellation = flow.pending_cancellation(scope, path)
        if cancellation is not None:
            return cancellation
        self._check_savable(definition, path)
        return self._attempt_all(flow, step, path, arguments, None, env, scope)

    async def _execute_again(
        self,
        flow: DurableFlow,
        step: Step,
        path: str,
        arguments: Arguments | None,
        recorded: RecordedStep,
        env: Any,
        scope: Scope,
    ) -> Any:
        """Return the recorded outcome of a step, or attempt the step again."""
        definition = step.definition
        self._check_arguments(path, recorded.arguments, arguments)
        outcome = self._replayed(definition, path, recorded, scope)
        if outcome is not _PENDING:
            if recorded.is_completed and recorded.ended is not None:
                flow.ended_at = recorded.ended
            return outcome
        if recorded.ended is None and not definition.at_most_once:
            await self._clean_up_within(flow, step, path, recorded, env, scope)
        await flow.check(scope, path)
        self._check_known(definition, path, recorded)
        self._check_savable(definition, path)
        return await self._attempt_all(flow, step, path, arguments, recorded, env, scope)

    def _replayed(self, definition: Any, path: str, recorded: RecordedStep, scope: Scope) -> Any:
        """Return or raise the recorded outcome of a step, or return `_PENDING` if it must run."""
        if recorded.ended is None or recorded.ended > scope.limit:
            return _PENDING
        if recorded.is_completed:
            self.last_completed = path
        else:
            stands = recorded.is_settled or not recorded.retryable or scope.limit < math.inf
            if recorded.retry_at is not None or not stands:
                return _PENDING
        if self._observers:
            has_failed = recorded.error is not None
            self.notify(StepSkipped(self.run_id, path, recorded.output, has_failed))
        if recorded.error is not None:
            types = self.checkpoints.known(definition.types)
            return self.replay_failure(recorded.error, path, types)
        return self.decode(recorded.output, path, definition.types, definition.output)

    def replay_failure(self, record: ErrorRecord, path: str, types: KnownTypes) -> Failure:
        """Return a recorded failure, or raise a recorded defect. Halt the run if it cannot be rebuilt."""
        try:
            failure = read_failure(record, path, types)
        except NotSerializable as unreadable:
            raise self.writer.halt(unreadable) from unreadable
        failure = self.replayed_failure(path, failure)
        if record.is_defect:
            raise failure.error
        return failure

    async def _clean_up_within(
        self,
        flow: DurableFlow,
        step: Step,
        path: str,
        recorded: RecordedStep,
        env: Any,
        scope: Scope,
    ) -> None:
        """Replay what is recorded inside a step that is cancelled, so that its finalizers complete."""
        is_cancelled = scope.limit < math.inf or scope.cancelling_operator() is not None
        if is_cancelled and path in self.recording.flows:
            await self.replay_within(flow, step, path, recorded, env, scope)

    async def replay_within(
        self,
        flow: DurableFlow,
        step: Step,
        path: str,
        recorded: RecordedStep,
        env: Any,
        scope: Scope,
    ) -> Any:
        """Return the outcome of the body of a step that is replayed, without another attempt."""
        at_most_once = scope.is_at_most_once
        current = CurrentStep(self.run_id, path, recorded.attempts, step.make_info, at_most_once)
        body = flow.body_of(path)
        inside = scope.inside_step(body, current)
        token = running_step.set(current)
        try:
            return await self._run_body(step, body, env, inside, None)
        finally:
            running_step.reset(token)

    def park(self, flow: DurableFlow, parked: Parked) -> None:
        """Note that a flow of a plan has ended."""

    def replayed_failure(self, path: str, failure: Failure) -> Failure:
        """Return a recorded failure that is replayed. A plan notes where it comes from."""
        return failure

    def _check_known(self, definition: Any, path: str, recorded: RecordedStep) -> None:
        """Halt if the outcome of an at-most-once step is unknown."""
        if recorded.ended is None and definition.at_most_once and not self.force:
            raise self.writer.halt(OutcomeUnknown(self.run_id, path))

    def _check_savable(self, definition: Any, path: str) -> None:
        """Halt if the output of a step could not be saved, before the step does anything."""
        if self._savable.get(definition.name) is definition:
            return
        try:
            check_savable(definition.output, self.checkpoints.known(definition.types), path=path)
        except NotSerializable as error:
            raise self.writer.halt(error) from error
        self._savable[definition.name] = definition

    def _attempt_all(
        self,
        flow: DurableFlow,
        step: Step,
        path: str,
        arguments: Arguments | None,
        recorded: RecordedStep | None,
        env: Any,
        scope: Scope,
    ) -> Coroutine[Any, Any, Any]:
        """Attempt a step as often as its retry policy allows."""
        if step.definition.retry is not None:
            return self._attempt_until_settled(flow, step, path, arguments, recorded, env, scope)
        number = recorded.attempts + 1 if recorded else 1
        return self._attempt(flow, step, path, number, arguments, env, scope)

    async def _attempt_until_settled(
        self,
        flow: DurableFlow,
        step: Step,
        path: str,
        arguments: Arguments | None,
        recorded: RecordedStep | None,
        env: Any,
        scope: Scope,
    ) -> Any:
        """Attempt a step until it succeeds or its retry policy gives up."""
        definition = step.definition
        number = recorded.attempts if recorded else 0
        spent = recorded.spent if recorded else 0
        if recorded is not None and recorded.retry_at is not None:
            failed_at = recorded.failures[-1].ended
            await self._wait_for_retry(flow, path, recorded.retry_at, failed_at, scope)
        began = self.clock.monotonic()
        if recorded is not None and recorded.since is not None:
            # Earlier lives, and the time between them, count, too.
            began -= max(0.0, self.now() - recorded.since)
        while True:
            number += 1
            outcome = await self._attempt(flow, step, path, number, arguments, env, scope)
            if outcome.__class__ is not Failure:
                return outcome
            elapsed = self.clock.monotonic() - began
            delay = partial(definition.retry.next_delay, number - spent - 1, elapsed)
            retry_at = await self._record_failure(flow, definition, path, outcome, delay)
            if retry_at is None:
                return outcome
            await self._wait_for_retry(flow, path, retry_at, self.now(), scope)

    async def _wait_for_retry(
        self, flow: DurableFlow, path: str, retry_at: float, failed_at: float, scope: Scope
    ) -> None:
        # The next attempt does everything again, also what an earlier life recorded.
        self.recording.begin_anew(path)
        # The clock may have been changed. Never wait longer because of that.
        left = min(retry_at - self.now(), max(0.0, retry_at - failed_at))
        if left > 0 and flow.may_wait:
            with self.rest(flow, scope, "a retry", self.now() + left):
                await self.sleep(path, left, scope)
        elif left > 0:
            # The outer step is in progress, so the run cannot be suspended.
            await self.sleep(path, left, scope)
        await flow.check(scope, path)

    async def _attempt(
        self,
        flow: DurableFlow,
        step: Step,
        path: str,
        number: int,
        arguments: Arguments | None,
        env: Any,
        scope: Scope,
    ) -> Any:
        """Attempt a step once. Record when it begins and ends, but leave failures to its retry policy."""
        definition, writer = step.definition, self.writer
        if definition.at_most_once:
            # An interrupted save would leave a step that has begun and whose outcome is unknown.
            await anyio.lowlevel.checkpoint_if_cancelled()
        if self.outer_operators:
            await self.cancel_if_decided()
        flow.record_from_here()
        began = self.clock.monotonic()
        self._add_before(flow, definition, path, number, arguments)
        if definition.at_most_once or self._policy.is_due(writer.completed_since_save):
            try:
                await writer.save(required=definition.at_most_once)
            except BaseException:
                # A cancellation here counts as an interruption of the step, although it never ran.
                self._cut_off[path] = None
                raise
        at_most_once = definition.at_most_once or scope.is_at_most_once
        current = CurrentStep(self.run_id, path, number, step.make_info, at_most_once)
        body = flow.body_of(
            path, may_wait=definition.can_be_suspended, is_pinned=definition.is_pinned
        )
        inside = scope.inside_step(body, current)
        token = running_step.set(current)
        if scope.observer is not None:
            scope.observer.began(path)
        try:
            if definition.timeout is None and body.cursor is None:
                outcome = await interpret(step.source, env, inside)
            else:
                work = partial(self._run_body, step, body, env, inside, definition.timeout)
                outcome = await self.stopping.supervised(work)
        except BaseException as raised:
            if at_most_once and isinstance(raised, Exception):
                self._check_outcome(path, raised)
            await self._record_bad_end(flow, definition, path, number, raised, scope)
            raise
        finally:
            running_step.reset(token)
        if scope.observer is not None:
            scope.observer.ended(path, exit_of(outcome))
        if outcome.__class__ is not Failure:
            self._add_completed(flow, body, definition, path, outcome, began)
            if current.is_cancelled:
                await anyio.lowlevel.checkpoint()
            return outcome
        if at_most_once:
            self._check_outcome(path, outcome.error)
        if definition.retry is None:
            await self._record_failure(flow, definition, path, outcome)
        # Without its parts, which are not recorded, so that every life continues with the same failure.
        return Failure(outcome.error, outcome.trail)

    def _add_before(
        self,
        flow: DurableFlow,
        definition: Any,
        path: str,
        number: int,
        arguments: Arguments | None,
    ) -> None:
        """Add the entry that an attempt of a step begins."""
        self.writer.add(
            BeforeStep(
                path,
                number,
                self.now(),
                arguments,
                definition.function,
                flow.take_item(),
                self.failures.settle(flow),
                flow.take_source_ends(),
                definition.at_most_once,
            )
        )

    def _add_completed(
        self,
        flow: DurableFlow,
        body: DurableFlow,
        definition: Any,
        path: str,
        value: Any,
        began: float,
    ) -> None:
        """Add the entry that a step has succeeded. Halt the run if its value cannot be saved."""
        output = self.encode(value, path, definition.types, definition.output)
        settles = self.failures.settle_within(body)
        self.writer.completed_since_save += 1
        self.last_completed = path
        duration = self.clock.monotonic() - began
        flow.ended_at = self.writer.add(Completed(path, output, duration, self.now(), settles))

    def _check_outcome(self, path: str, error: object) -> None:
        """Halt if an executor cannot tell how an at-most-once step ended."""
        lost: Any = error
        while isinstance(lost, RetryExhausted | TracedError | EffectError):
            lost = cast("Any", lost).error
        if isinstance(lost, ExecutorError):
            reason = type(lost).__name__
            self.writer.add(Interrupted(path, in_progress=True, reason=reason, at=self.now()))
            unknown = OutcomeUnknown(self.run_id, path)
            unknown.__cause__ = lost
            raise self.writer.halt(unknown)

    async def _run_body(
        self, step: Step, body: DurableFlow, env: Any, inside: Scope, seconds: float | None
    ) -> Any:
        """Run the body of a step that has a timeout, or that continues an attempt."""
        limit = body.limit(inside, seconds)
        if limit is None:
            return await body.run_branch(inside, partial(interpret, step.source, env, inside))
        operator = Operator(inside, limit)
        within = operator.inside
        return await run_limited(operator, step.source, env, within, seconds or 0.0, seconds)

    async def _record_failure(
        self,
        flow: DurableFlow,
        definition: Any,
        path: str,
        failed: Failure,
        next_delay: Callable[[], float | None] | None = None,
    ) -> float | None:
        """Record a failure. Return when the step's policy retries it, in seconds since the epoch."""
        error = failed.error
        retryable = not definition.may_have_happened(error)
        may_retry = False
        try:
            retryable = retryable and definition.is_retryable(error)
            may_retry = retryable and definition.policy_applies(error)
        except Exception:
            # A broken predicate must not hide the failure, or prevent its recording.
            logger.exception("the retryable predicate of step %r raised", path)
        delay = next_delay() if next_delay and may_retry else None
        retry_at = None if delay is None else self.time_after(delay)
        await self._record_error(flow, definition, path, failed, retryable, retry_at=retry_at)
        return retry_at

    async def _record_bad_end(
        self,
        flow: DurableFlow,
        definition: Any,
        path: str,
        number: int,
        raised: BaseException,
        scope: Scope,
    ) -> None:
        """Record the end of a step by a defect or an interruption."""
        if scope.observer is not None:
            scope.observer.ended(path, exit_of_raised(raised))
        if isinstance(raised, Exception):
            add_note(raised, f"in step {path!r} of run {self.run_id!r}, attempt {number}")
        if self.writer.halted is not None:
            return
        if isinstance(raised, Exception):
            await self._record_error(flow, definition, path, raised, True)
        elif not isinstance(raised, Parked):
            if isinstance(raised, Halt) or not is_cancellation(raised) or scope.cause() is None:
                self._cut_off[path] = None
            reason = interruption_reason()
            interrupted = Interrupted(path, in_progress=True, reason=reason, at=self.now())
            self._interrupted_at = self.writer.add(interrupted)
            with self.writer.last_saves():
                await self.writer.save()

    async def _record_error(
        self,
        flow: DurableFlow,
        definition: Any,
        path: str,
        ended: Failure | Exception,
        retryable: bool,
        *,
        retry_at: float | None = None,
    ) -> None:
        types = self.checkpoints.known(definition.types)
        record = write_end(ended, types)
        error = ended.error if isinstance(ended, Failure) else ended
        sequence = self.writer.add(Failed(path, record, retryable, self.now(), retry_at))
        self.failures.add(sequence)
        flow.unsettled.append(sequence)
        flow.last_failure = (error, sequence)
        # A defect that cannot be rebuilt comes back as a RecordedDefect.
        if not record.is_defect and retry_at is None:
            self.failures.check_readable(sequence, error, record, types, path)
        if self._policy.on_error:
            await self.writer.save()

    # Cancellation by an outer run.

    def entry_of(self, cause: Operator) -> int | None:
        """Return the entry of the decision that cancelled the source of a finalizer."""
        branches = cause.branches
        if not isinstance(branches, DurableBranches):
            return None
        return branches.sequence if branches.outer.run is self else self.cancelled_at

    async def cancel_if_decided(self) -> None:
        """Record that a decision of an outer run cancelled this run, if one did.

        First, the outer run settles the decision durably if its resume could not use a cancelled run.
        """
        if self.stopping.has_begun or self.cancelled_at is not None:
            return
        for operator in self.outer_operators:
            if operator.cancels() and isinstance(operator.branches, DurableBranches):
                # A run that was interrupted between its steps is the first to notice the deadline.
                operator.expire()
                await self._cancel(operator.branches)
                return

    async def _cancel(self, branches: DurableBranches) -> None:
        assert self.around is not None
        await self.around.begin_cancellation()
        # Another finalizer may have recorded it in the meantime.
        if self.cancelled_at is None:
            reason = f"{branches.path!r} of {branches.outer.run.run_id!r}"
            self.cancelled_at = self.writer.add(CancelRequested(self.now(), reason))

    # Messages.

    async def next_message(self, flow: DurableFlow, scope: Scope, path: str, topic: str) -> Message:
        """Wait for the first message about a topic, and leave it in the mailbox.

        Parameters:
            flow: the flow that waits.
            scope: the position of the wait.
            path: the path of the wait.
            topic: the topic.
        """
        if (message := self.mailbox.first(topic)) is not None:
            return message
        async with woken_by(self.checkpoints.store, self.run_id) as woken:
            while True:
                await self.look_for_messages()
                message = self.mailbox.first(topic)
                if message is not None:
                    return message
                with self.rest(flow, scope, topic.replace(":", " ", 1), look=woken.set):
                    await woken.wait()

    def take_message(self, path: str, message: Message, value: Tree) -> int:
        """Record that a wait has received a message. Return the number of the entry."""
        self.mailbox.take(message)
        return self.writer.add(Signalled(path, message.topic, message.key, value, self.now()))

    async def look_for_messages(self) -> None:
        """Read the new messages. One of them may cancel the run."""
        await self.mailbox.refresh()
        request = self.mailbox.first(CANCEL)
        if request is None or self.cancellation is None:
            return
        # The next life finds the request, too.
        if not self.stopping.has_begun and self.writer.halted is None:
            self.mailbox.take(request)
            self.cancellation.request()

    def decode_message(self, tree: Tree, path: str, decode: Callable[[Tree], A]) -> A:
        """Return the value of a message. Halt the run if it is not what the wait declares."""
        try:
            return decode(tree)
        except MalformedValue as error:
            reason = f"the message that {path!r} receives is not what the signal declares: {error}"
            raise self.writer.halt(CorruptCheckpoint(self.run_id, reason)) from error

    def interruption(self, reason: str) -> Interrupted | None:
        """Return the last entry of an interruption; None if a step recorded one as the last entry.

        Other steps may have ended after the interrupted one.
        """
        if self._interrupted_at == self.writer.length:
            return None
        step, in_progress = self.last_completed, False
        if self._cut_off:
            step, in_progress = next(reversed(self._cut_off)), True
        return Interrupted(step, in_progress=in_progress, reason=reason, at=self.now())

    # Common parts.

    @contextmanager
    def rest(
        self,
        flow: DurableFlow,
        scope: Scope,
        what: str,
        until: float = math.inf,
        look: Callable[[], object] | None = None,
    ) -> Generator[None]:
        """Count a flow as resting while the block runs; the other parameters are as in `Activity.rest`.

        In an acquisition or a finalizer, which no cancellation reaches, a stop of the run ends the block.
        """
        is_shielded = scope.is_shielded or self.is_shielded
        ending = self.stopping.ends_wait(what) if is_shielded else nullcontext()
        with self.activity.rest(what, until, look, is_pinned=flow.is_pinned), ending:
            yield

    def leave_behind(self, sequences: Iterable[int]) -> None:
        """Record that the run continues without recorded entries, as `force` allows."""
        chosen = sorted(sequences)
        ranges = compressed(chosen, chosen)
        self.writer.add(Resumed(self.writer.lease.owner, self.now(), abandoned=ranges))

    def _now(self) -> float:
        """Return the time of the run's clock, in seconds since the epoch."""
        return self.clock.now().timestamp()

    def time_after(self, seconds: float) -> float:
        """Return the time when this many seconds have passed, or the last one that can be recorded."""
        return min(self.now() + seconds, LATEST)

    async def sleep(self, path: str, seconds: float, scope: Scope) -> None:
        """Wait within a flow."""
        await scope.clock.sleep(seconds)

    def encode(self, value: Any, path: str, types: KnownTypes, annotation: object = None) -> Tree:
        """Return a value in its saved form. Halt the run if it cannot be saved, or is of another type.

        Plain data is returned unchanged and written immediately, unless an observer could keep it.
        """
        mismatch = mismatch_of(value, annotation)
        if mismatch is not None:
            refused = NotSerializable(f"{path}: ${mismatch[0]}", f"{mismatch[1]}. {_ANNOTATE}")
            raise self.writer.halt(refused)
        if not self._observers and plain_json(value) is not None:
            return value
        try:
            return to_tree(value, path=f"{path}: $", types=self.checkpoints.known(types))
        except NotSerializable as error:
            raise self.writer.halt(error) from error

    def decode(self, tree: Tree, path: str, types: KnownTypes, annotation: object = None) -> Any:
        """Return a saved value. Halt the run if it does not match the step's declaration."""
        try:
            value = from_tree(tree, path=f"{path}: $", types=self.checkpoints.known(types))
            return of_type(value, None if self.force else annotation, path=f"{path}: $")
        except MalformedValue as error:
            problem = f"the output of step {path!r} is not what the step declares: {error}"
            reason = f"{problem}. {CLASS_CHANGED}"
            raise self.writer.halt(CorruptCheckpoint(self.run_id, reason)) from error

    def _arguments_of(self, step: Step) -> Arguments | None:
        try:
            if step.arguments is None:
                return None
            return Arguments(*step.arguments(self.checkpoints.value_options))
        except NotSerializable as error:
            raise self.writer.halt(error) from error

    def _check_arguments(
        self, path: str, recorded: Arguments | None, current: Arguments | None
    ) -> None:
        if recorded is None or current is None or recorded.digest == current.digest:
            return
        raise self.writer.halt(StepInputChanged(self.run_id, path, recorded.shown, current.shown))

    def notify(self, event: CheckpointEvent) -> None:
        """Tell the observers."""
        tell(self._observers, event)
