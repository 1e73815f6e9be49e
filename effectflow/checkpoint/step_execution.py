"""Execute a step of a durable run: replay its recorded outcome, or attempt it and record that."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import anyio.lowlevel

from effectflow.checkpoint.entries import (
    Arguments,
    BeforeStep,
    Completed,
    Failed,
    Interrupted,
)
from effectflow.checkpoint.errors import NotSerializable, OutcomeUnknown, StepInputChanged
from effectflow.checkpoint.failures import write_end
from effectflow.checkpoint.observers import StepSkipped
from effectflow.checkpoint.recording import RecordedStep
from effectflow.checkpoint.step import CurrentStep
from effectflow.checkpoint.stopping import interruption_reason
from effectflow.checkpoint.values import check_savable
from effectflow.effects.errors import (
    EffectError,
    ExecutorError,
    Halt,
    Parked,
    RetryExhausted,
    TracedError,
)
from effectflow.effects.event_loop import is_cancellation
from effectflow.effects.interpreter import exit_of, exit_of_raised, interpret, interpret_limited
from effectflow.effects.nodes import Step
from effectflow.effects.scope import Operator, Scope, running_step
from effectflow.effects.trails import TypedFailure, add_note

if TYPE_CHECKING:
    from effectflow.checkpoint.flow import DurableFlow
    from effectflow.checkpoint.run import Run

logger = logging.getLogger(__name__)

_PENDING: Final = object()
"""Stands for the outcome of a step that must be attempted."""


class StepExecution:
    """The execution of one step that a flow has reached.

    Attributes:
        run, flow: the run, and the flow that reached the step.
        step, definition: the step, and its name and options.
        path: the path of the step.
        recorded: what earlier lives recorded of it; None if they recorded nothing.
        arguments: the arguments of the step; None if it compares none.
        env, scope: the environment and the position of the step.
    """

    __slots__ = (
        "arguments",
        "definition",
        "env",
        "flow",
        "path",
        "recorded",
        "run",
        "scope",
        "step",
    )

    def __init__(self, flow: DurableFlow, step: Step, env: Any, scope: Scope) -> None:
        run, definition = flow.run, step.definition
        path = flow.next_path(definition.name)
        if definition.code is not None:
            flow.check_function(definition.name, definition.code, definition.function)
        self.run: Run = run
        self.flow = flow
        self.step = step
        self.definition = definition
        self.path = path
        self.env = env
        self.scope = scope
        self.recorded: RecordedStep | None = None
        if flow.reach(path, scope):
            self.recorded = run.recording.steps.get(path)
        self.arguments: Arguments | None = None
        if step.arguments is not None:
            try:
                self.arguments = Arguments(*step.arguments(run.checkpoints.value_options))
            except NotSerializable as error:
                raise run.writer.halt(error) from error

    def begin(self) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of the execution, which returns the value of the step or a `TypedFailure`.

        Not a coroutine itself, because each one around a step makes it measurably slower.
        """
        if self.recorded is not None and self._begins_anew(self.recorded):
            self.recorded = None
        if self.recorded is not None:
            return self._execute_again(self.recorded)
        cancellation = self.flow.pending_cancellation(self.scope, self.path)
        if cancellation is not None:
            return cancellation
        self._check_savable()
        return self.attempt_all()

    # What earlier lives recorded.

    async def _execute_again(self, recorded: RecordedStep) -> Any:
        """Return the recorded outcome of the step, or attempt the step again."""
        self._check_arguments(recorded.arguments)
        outcome = self.replayed(recorded)
        if outcome is not _PENDING:
            if recorded.is_completed and recorded.ended is not None:
                self.flow.ended_at = recorded.ended
            return outcome
        if recorded.ended is None and not self.definition.at_most_once:
            await self._clean_up_within(recorded)
        await self.flow.check(self.scope, self.path)
        self._check_known(recorded)
        self._check_savable()
        return await self.attempt_all()

    def replayed(self, recorded: RecordedStep) -> Any:
        """Return or raise the recorded outcome, or return `_PENDING` if the step must be attempted."""
        run, definition, scope = self.run, self.definition, self.scope
        if recorded.ended is None or recorded.ended > scope.limit:
            return _PENDING
        if recorded.is_completed:
            run.last_completed = self.path
        else:
            stands = recorded.is_settled or not recorded.retryable or scope.limit < math.inf
            if recorded.retry_at is not None or not stands:
                return _PENDING
        if run.observers:
            has_failed = recorded.error is not None
            run.notify(StepSkipped(run.run_id, self.path, recorded.output, has_failed))
        if recorded.error is not None:
            types = run.checkpoints.known(definition.types)
            return run.replay_failure(recorded.error, self.path, types)
        return run.decode(recorded.output, self.path, definition.types, definition.output)

    async def _clean_up_within(self, recorded: RecordedStep) -> None:
        """Replay what is recorded inside a step that is cancelled, so that its finalizers complete."""
        scope = self.scope
        is_cancelled = scope.limit < math.inf or scope.cancelling_operator() is not None
        if is_cancelled and self.path in self.run.recording.flows:
            await self.replay_within(recorded)

    async def replay_within(self, recorded: RecordedStep) -> Any:
        """Return the outcome of the body of the step when it is replayed, without another attempt."""
        run, path, make_info = self.run, self.path, self.step.make_info
        at_most_once = self.definition.at_most_once or self.scope.is_at_most_once
        current = CurrentStep(run.run_id, path, recorded.attempts, make_info, at_most_once)
        body = self.flow.body_of(path)
        inside = self.scope.inside_step(body, current)
        token = running_step.set(current)
        try:
            return await self._run_body(body, inside, None)
        finally:
            running_step.reset(token)

    def _begins_anew(self, recorded: RecordedStep) -> bool:
        """Return whether a forced run executes a recorded step for other arguments.

        Only a step that it had left behind, because the changed workflow reaches something else before
        it. If it is at-most-once and may have happened, it does not happen again.
        """
        run = self.run
        if not run.force or self.path not in run.recording.left_behind:
            return False
        return not self._has_arguments(recorded.arguments) and not recorded.is_unknown

    def _has_arguments(self, recorded: Arguments | None) -> bool:
        """Return whether the arguments equal the recorded ones, as far as they are known."""
        current = self.arguments
        return recorded is None or current is None or recorded.digest == current.digest

    def _check_arguments(self, recorded: Arguments | None) -> None:
        """Halt if an earlier life executed the step with other arguments."""
        run, current = self.run, self.arguments
        if recorded is None or current is None or self._has_arguments(recorded):
            return
        raise run.writer.halt(
            StepInputChanged(run.run_id, self.path, recorded.shown, current.shown)
        )

    def _check_known(self, recorded: RecordedStep) -> None:
        """Halt if the outcome of an at-most-once step is unknown."""
        run = self.run
        if recorded.ended is None and self.definition.at_most_once and not run.force:
            raise run.writer.halt(OutcomeUnknown(run.run_id, self.path))

    def _check_savable(self) -> None:
        """Halt if the output of the step could not be saved, before the step does anything."""
        run, definition = self.run, self.definition
        if run.savable.get(definition.name) is definition:
            return
        try:
            types = run.checkpoints.known(definition.types)
            check_savable(definition.output, types, path=self.path)
        except NotSerializable as error:
            raise run.writer.halt(error) from error
        run.savable[definition.name] = definition

    # Attempts.

    def attempt_all(self) -> Coroutine[Any, Any, Any]:
        """Attempt the step as often as its retry policy allows."""
        if self.definition.retry is not None:
            return self._attempt_until_settled(self.recorded)
        return self.attempt(self.recorded.attempts + 1 if self.recorded else 1)

    async def _attempt_until_settled(self, recorded: RecordedStep | None) -> Any:
        """Attempt the step until it succeeds or its retry policy gives up."""
        run, definition = self.run, self.definition
        number = recorded.attempts if recorded else 0
        spent = recorded.spent if recorded else 0
        if recorded is not None and recorded.retry_at is not None:
            await self._wait_for_retry(recorded.retry_at, recorded.failures[-1].ended)
        began = run.clock.monotonic()
        if recorded is not None and recorded.since is not None:
            # Earlier lives, and the time between them, count, too.
            began -= max(0.0, run.now() - recorded.since)
        while True:
            number += 1
            outcome = await self.attempt(number)
            if outcome.__class__ is not TypedFailure:
                return outcome
            elapsed = run.clock.monotonic() - began
            delay = partial(definition.retry.next_delay, number - spent - 1, elapsed)
            retry_at = await self._record_failure(outcome, delay)
            if retry_at is None:
                return outcome
            await self._wait_for_retry(retry_at, run.now())

    async def _wait_for_retry(self, retry_at: float, failed_at: float) -> None:
        run, flow, path, scope = self.run, self.flow, self.path, self.scope
        # The next attempt does everything again, also what an earlier life recorded.
        run.recording.begin_anew(path)
        # The clock may have been changed. Never wait longer because of that.
        left = min(retry_at - run.now(), max(0.0, retry_at - failed_at))
        if left > 0 and flow.may_wait:
            with run.rest(flow, scope, "a retry", run.now() + left):
                await run.sleep(path, left, scope)
        elif left > 0:
            # The outer step is in progress, so the run cannot be suspended.
            await run.sleep(path, left, scope)
        await flow.check(scope, path)

    async def attempt(self, number: int) -> Any:
        """Attempt the step once, and record when it begins and ends.

        A failure is recorded here only if the step has no retry policy.
        """
        run, flow, definition, scope = self.run, self.flow, self.definition, self.scope
        path, writer = self.path, run.writer
        if definition.at_most_once:
            # An interrupted save would leave a step that has begun and whose outcome is unknown.
            await anyio.lowlevel.checkpoint_if_cancelled()
        if run.outer_operators:
            await run.cancel_if_decided()
        flow.record_from_here()
        began = run.clock.monotonic()
        self._add_before(number)
        if definition.at_most_once or run.checkpoints.policy.is_due(writer.completed_since_save):
            try:
                await writer.save(required=definition.at_most_once)
            except BaseException:
                # A cancellation here counts as an interruption of the step, although it never ran.
                run.cut_off[path] = None
                raise
        at_most_once = definition.at_most_once or scope.is_at_most_once
        current = CurrentStep(run.run_id, path, number, self.step.make_info, at_most_once)
        body = flow.body_of(
            path, may_wait=definition.can_be_suspended, is_pinned=definition.is_pinned
        )
        inside = scope.inside_step(body, current)
        token = running_step.set(current)
        if scope.observer is not None:
            scope.observer.began(path)
        try:
            if definition.timeout is None and body.cursor is None:
                outcome = await interpret(self.step.source, self.env, inside)
            else:
                work = partial(self._run_body, body, inside, definition.timeout)
                outcome = await run.stopping.supervised(work)
        except BaseException as raised:
            await self._record_bad_end(current, raised)
            raise
        finally:
            running_step.reset(token)
        if scope.observer is not None:
            scope.observer.ended(path, exit_of(outcome))
        if outcome.__class__ is not TypedFailure:
            self._add_completed(body, outcome, began)
            if current.is_cancelled:
                await anyio.lowlevel.checkpoint()
            return outcome
        self._check_outcome(current, outcome.error)
        if definition.retry is None:
            await self._record_failure(outcome)
        # Without its parts, which are not recorded, so that every life continues with the same failure.
        return TypedFailure(outcome.error, outcome.trail)

    async def _run_body(self, body: DurableFlow, inside: Scope, seconds: float | None) -> Any:
        """Run the body of a step that has a timeout, or that continues an attempt."""
        source, env = self.step.source, self.env
        limit = body.limit(inside, seconds)
        if limit is None:
            return await body.run_branch(inside, partial(interpret, source, env, inside))
        operator = Operator(inside, limit)
        late = partial(operator.timed_out, seconds or 0.0)
        return await interpret_limited(
            operator, source, env, operator.inside, inside.deadline(seconds), late
        )

    # The entries of an attempt.

    def _add_before(self, number: int) -> None:
        """Add the entry that an attempt begins."""
        run, flow, definition = self.run, self.flow, self.definition
        run.writer.add(
            BeforeStep(
                self.path,
                number,
                run.now(),
                self.arguments,
                definition.function,
                flow.take_item(),
                flow.settle(),
                flow.take_source_ends(),
                definition.at_most_once,
            )
        )

    def _add_completed(self, body: DurableFlow, value: Any, began: float) -> None:
        """Add the entry that the step has succeeded. Halt the run if its value cannot be saved."""
        run, definition, path = self.run, self.definition, self.path
        output = run.encode(value, path, definition.types, definition.output)
        settles = body.settle_own()
        run.writer.completed_since_save += 1
        run.last_completed = path
        duration = run.clock.monotonic() - began
        self.flow.ended_at = run.writer.add(Completed(path, output, duration, run.now(), settles))

    def _check_outcome(self, current: CurrentStep, error: object) -> None:
        """Halt if an executor cannot tell how an at-most-once step ended."""
        if not current.at_most_once:
            return
        run = self.run
        lost: Any = error
        while isinstance(lost, RetryExhausted | TracedError | EffectError):
            lost = cast("Any", lost).error
        if isinstance(lost, ExecutorError):
            reason = type(lost).__name__
            run.writer.add(Interrupted(self.path, in_progress=True, reason=reason, at=run.now()))
            unknown = OutcomeUnknown(run.run_id, self.path)
            unknown.__cause__ = lost
            raise run.writer.halt(unknown)

    async def _record_failure(
        self, failed: TypedFailure, next_delay: Callable[[], float | None] | None = None
    ) -> float | None:
        """Record a failure. Return when the step's policy retries it, in seconds since the epoch."""
        definition, error = self.definition, failed.error
        retryable = not definition.may_have_happened(error)
        may_retry = False
        try:
            retryable = retryable and definition.is_retryable(error)
            may_retry = retryable and definition.policy_applies(error)
        except Exception:
            # A broken predicate must not hide the failure, or prevent its recording.
            logger.exception("the retryable predicate of step %r raised", self.path)
        delay = next_delay() if next_delay and may_retry else None
        retry_at = None if delay is None else self.run.time_after(delay)
        await self._record_error(failed, retryable, retry_at=retry_at)
        return retry_at

    async def _record_bad_end(self, current: CurrentStep, raised: BaseException) -> None:
        """Record the end of an attempt by a defect or an interruption."""
        run, path, scope = self.run, self.path, self.scope
        if scope.observer is not None:
            scope.observer.ended(path, exit_of_raised(raised))
        if isinstance(raised, Exception):
            self._check_outcome(current, raised)
            add_note(raised, f"in step {path!r} of run {run.run_id!r}, attempt {current.attempt}")
        if run.writer.halted is not None:
            return
        if isinstance(raised, Exception):
            await self._record_error(raised, True)
        elif not isinstance(raised, Parked):
            if isinstance(raised, Halt) or not is_cancellation(raised) or scope.cause() is None:
                run.cut_off[path] = None
            reason = interruption_reason()
            interrupted = Interrupted(path, in_progress=True, reason=reason, at=run.now())
            run.interrupted_at = run.writer.add(interrupted)
            with run.writer.last_saves():
                await run.writer.save()

    async def _record_error(
        self, ended: TypedFailure | Exception, retryable: bool, *, retry_at: float | None = None
    ) -> None:
        run, flow, path = self.run, self.flow, self.path
        types = run.checkpoints.known(self.definition.types)
        record = write_end(ended, types)
        error = ended.error if isinstance(ended, TypedFailure) else ended
        sequence = run.writer.add(Failed(path, record, retryable, run.now(), retry_at))
        run.failures.add(sequence)
        flow.unsettled.append(sequence)
        flow.last_failure = (error, sequence)
        # A defect that cannot be rebuilt comes back as a RecordedDefect.
        if not record.is_defect and retry_at is None:
            run.failures.check_readable(sequence, error, record, types, path)
        if run.checkpoints.policy.on_error:
            await run.writer.save()
