"""Execute a step of a durable run: replay its recorded outcome, or attempt it and record that."""

from __future__ import annotations

import logging
from collections.abc import Collection, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard, cast

import anyio.lowlevel

from effectflow.checkpoint.causes import Cause, void_with
from effectflow.checkpoint.entries import (
    BeforeStep,
    Completed,
    ErrorRecord,
    Failed,
    Interrupted,
    Ranges,
)
from effectflow.checkpoint.errors import (
    CheckpointError,
    DefinitionChanged,
    NotSerializable,
    OutcomeUnknown,
    StepInputChanged,
    StoreUnavailable,
)
from effectflow.checkpoint.failures import RecordedDefect, is_exact, read_error, write_end
from effectflow.checkpoint.observers import AttemptBegan, Surroundings
from effectflow.checkpoint.order import in_ranges
from effectflow.checkpoint.ordered_fiber import Intent
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.shared_parts import LongOutput
from effectflow.checkpoint.step import CurrentStep
from effectflow.checkpoint.stopping import interruption_reason
from effectflow.checkpoint.store import TransactionUndone, transactions_of
from effectflow.checkpoint.transactional_step import TransactionCall
from effectflow.checkpoint.values import (
    KnownTypes,
    check_savable,
    is_compared,
    is_same_digest,
    render_arguments,
    safe_repr,
)
from effectflow.checkpoint.waits import wait_until_retry
from effectflow.effects import RetryPolicy
from effectflow.effects.errors import (
    EffectError,
    ExecutorError,
    Halt,
    RetryExhausted,
    TracedError,
)
from effectflow.effects.event_loop import is_cancellation, raise_caught_cancellation
from effectflow.effects.interpreter import exit_of, exit_of_raised, interpret, interpret_limited
from effectflow.effects.nodes import Step
from effectflow.effects.paths import is_within
from effectflow.effects.scope import Operator, Scope, running_step
from effectflow.effects.trails import TypedFailure, add_note

if TYPE_CHECKING:
    from effectflow.checkpoint.durable_fiber import DurableFiber

logger = logging.getLogger(__name__)

_ENDS = (Completed, Failed, Interrupted)

_CONFLICT_DELAYS = (
    RetryPolicy.exponential(0.01).with_max_delay(1).with_full_jitter().with_max_retries(12)
)
"""The seconds after which to perform a transaction again that the database has undone."""


class Arguments(NamedTuple):
    """The digest of the arguments of a step, and a preview: see `encode_arguments`."""

    digest: str
    preview: str


class StepExecution:
    """The execution of one step that a fiber has reached.

    Attributes:
        run, fiber: the run, and the fiber that reached the step.
        step, definition: the step, and its name and options.
        path: the path of the step.
        arguments: the arguments of the step; None if it compares none.
        since: when the first attempt that counts began, in seconds since the epoch; None before.
        retry_at: when the attempt that has failed is followed by another one; None if by none.
        env, scope: the environment and the position of the step.
    """

    __slots__ = (
        "arguments",
        "definition",
        "env",
        "fiber",
        "path",
        "retry_at",
        "run",
        "scope",
        "since",
        "step",
    )

    def __init__(self, fiber: DurableFiber, step: Step, env: Any, scope: Scope) -> None:
        run, definition = fiber.run, step.definition
        self.run: Run = run
        self.fiber = fiber
        self.step = step
        self.definition = definition
        self.path = fiber.next_path(definition.name, definition.was)
        self.env = env
        self.scope = scope
        if run.planning is not None:
            run.planning.reaches(self.path, definition)
        if definition.code is not None:
            fiber.check_function(definition.name, definition.code, definition.function)
            for name in definition.was:
                fiber.check_function(name, definition.code, definition.function)
        self.since: float | None = None
        self.retry_at: float | None = None
        output = fiber.long_output
        known = () if output is None else output.as_it_came()
        self.arguments = self._encode_arguments(known, fiber.output)

    def _encode_arguments(
        self, known: Collection[int] = (), before: object = None
    ) -> Arguments | None:
        """Return the arguments, of which the known ones need not be compared; None without any.

        Those that come from the output `before` are not shown.
        """
        step, run = self.step, self.run
        if step.arguments is None:
            return None
        try:
            digest, preview = step.arguments(run.checkpoints.value_options, known, before)
        except NotSerializable as error:
            raise run.halt(error) from error
        return Arguments(digest, preview)

    def _all_arguments(self) -> Arguments | None:
        """Return the arguments, with the digests of all."""
        known = self.arguments
        if known is None or is_compared(known.digest):
            return known
        return self._encode_arguments((), self.fiber.output)

    async def outcome(self) -> object:
        """Return the value of the step or a `TypedFailure`, of this life or an earlier one."""
        run, fiber, scope, path = self.run, self.fiber, self.scope, self.path
        turns, order = run.turns, run.turns.order
        await fiber.check(scope)
        if run.is_out_of_breath():
            await fiber.breathe(scope)
        if order.results and path in order.results:
            left = order.results.pop(path)
            if self._may_use(left):
                return self._result_of(left)
        if path in order.places and (done := turns.replay.take_completed(fiber, path)) is not None:
            begun, completed = done
            fiber.begins()
            self._check_arguments(begun)
            fiber.follows(path, turns.replay.number_taken)
            return self._result_of(completed)
        while True:
            begun = None
            if path in order.places:
                begun = await self.reach_begin()
                ended = await fiber.reach_end(path, scope, _ENDS)
                fiber.place = path
                if isinstance(ended, Failed) and ended.retry_at is not None:
                    await self._wait_again(ended, ended.retry_at)
                    continue
                if ended is not None:
                    return await self.replay(ended)
            if self.definition.retry is not None and self.since is None:
                known = order.attempts.get(path)
                self.since = run.now() if known is None or known.since is None else known.since
            self.retry_at = None
            outcome = await self.attempt(begun)
            retry_at = self.retry_at
            if outcome.__class__ is not TypedFailure or retry_at is None:
                return outcome
            await wait_until_retry(fiber, scope, retry_at, retry_at - run.now())
            fiber.place = path

    # What earlier lives recorded.

    async def _wait_again(self, failed: Failed, retry_at: float) -> None:
        """Wait for the attempt that follows a recorded one."""
        fiber, scope = self.fiber, self.scope
        fiber.failures = []
        if fiber.turns.replay.next_at(self.path) is None:
            await fiber.turns.to_frontier(fiber, scope, Intent.WAIT)
            await wait_until_retry(fiber, scope, retry_at, max(0.0, retry_at - failed.at))

    async def reach_begin(self) -> BeforeStep | None:
        """Return the recorded beginning of the step, in its place. Halt if its arguments have changed."""
        begun = await self.fiber.reach_begin(self.path, self.scope, BeforeStep)
        if begun is not None:
            self._check_arguments(begun)
        return begun

    async def replay(self, ended: Completed | Failed | Interrupted) -> object:
        """Return or raise a recorded end."""
        run, fiber, scope, path = self.run, self.fiber, self.scope, self.path
        if ended.stands:
            for operator in scope.operators:
                for cause in operator.causes:
                    cause.stand()
        if isinstance(ended, Interrupted):
            operator = scope.cancelling_operator()
            if operator is None:
                if run.planning is not None and run.planning.is_parked:
                    # What cancelled it could not be reached.
                    await fiber.park(scope, run.planning.reason)
                if run.force:
                    order = run.turns.order
                    order.abandon(run.turns.replay.number_taken, ended)
                    return await self.attempt(order.begun.get(path))
                detail = f"{path!r} was cancelled, and now nothing cancels it"
                raise run.halt(
                    DefinitionChanged(run.run_id, run.workflow, detail=detail, recorded=path)
                )
            fiber.adopt(operator)
            for number in (*_numbers_in(ended.inside), run.turns.replay.number_taken):
                fiber.follows(path, number)
            await fiber.leave_for(operator)
        inside = [] if isinstance(ended, Completed) else _numbers_in(ended.inside)
        return self._result_of(ended, *inside, run.turns.replay.number_taken)

    def _result_of(self, ended: Completed | Failed, *numbers: int) -> object:
        """Return or raise a recorded result. The entries with these numbers are void with a failure."""
        run, fiber, path = self.run, self.fiber, self.path
        run.notify_skipped(path, ended)
        if isinstance(ended, Completed):
            fiber.succeeds()
            run.last_completed = path
            types = self.definition.types
            known = None if ended.shared is None else run.known_parts(types)
            value = run.decode(
                ended.output, path, self.definition.types, self.definition.output, known
            )
            if known is not None:
                fiber.long_output = LongOutput(value)
            fiber.output = value
            return value
        types = run.checkpoints.known(self.definition.types)
        failure, unreadable = run.read_failure(ended.error, path, types)
        if isinstance(failure.error, RecordedDefect):
            run.turns.replay.undeclared = path
        if run.planning is not None:
            run.planning.fails(path, failure.error)
        fiber.failures = [
            Cause(
                *[(path, number) for number in numbers],
                step=path,
                error=failure.error,
                unreadable=unreadable,
                is_retryable=ended.retryable,
            )
        ]
        if ended.error.is_defect:
            assert isinstance(failure.error, Exception)
            raise failure.error
        return failure

    def _may_use(self, left: Completed | Failed | None) -> TypeGuard[Completed | Failed]:
        """Return whether the end of a step that changed code had left behind stands here.

        Halts if it does not, and the step must not be executed again.
        """
        run, path = self.run, self.path
        begun = run.turns.order.begun.get(path)
        has_arguments = begun is None or self._has_arguments(begun)
        if left is not None and has_arguments:
            return True
        if self.definition.at_most_once:
            if begun is not None:
                self._check_arguments(begun)
            raise run.halt(OutcomeUnknown(run.run_id, path))
        return False

    def _has_arguments(self, begun: BeforeStep) -> bool:
        """Return whether the arguments equal the recorded ones, as far as they are known."""
        recorded, current = begun.arguments, self.arguments
        if recorded is None or current is None or is_same_digest(recorded, current.digest):
            return True
        # Short arguments have one digest, although one of them is a part of a long output.
        self.arguments = current = self._all_arguments()
        return current is None or recorded == current.digest

    def _check_arguments(self, begun: BeforeStep) -> None:
        """Halt if an earlier life executed the step with other arguments."""
        run = self.run
        if self._has_arguments(begun):
            return
        current = self._all_arguments() if begun.preview else self._encode_arguments()
        assert current is not None
        was, now = begun.shown, render_arguments(current.preview)
        if run.checkpoints.encryption is not None:
            was, now = (f"arguments of digest {one}" for one in (begun.arguments, current.digest))
        raise run.halt(StepInputChanged(run.run_id, self.path, was, now))

    # An attempt.

    async def attempt(self, begun: BeforeStep | None) -> object:
        """Attempt the step once, or continue an attempt that has begun something within the step.

        `begun` is its recorded beginning, if it has begun.
        """
        turns, path, definition = self.fiber.turns, self.path, self.definition
        is_unknown = False
        if begun is not None and not turns.is_live:
            planning, has_within = self.run.planning, turns.order.has_within(path)
            refuses_unknown = planning is None or planning.refuses_unknown
            is_unknown = definition.at_most_once and path in turns.order.open
            is_unknown = is_unknown and refuses_unknown and not self.run.force
            may_enter = planning is None or planning.enters(path, definition)
            if has_within and may_enter and not is_unknown:
                return await self._continue(turns.order.begun[path].attempt)
            is_plan = planning is not None and refuses_unknown
            unknown = path if is_unknown else self._unknown_within() if is_plan else None
            if unknown is not None and (is_plan or has_within):
                raise self.run.halt(OutcomeUnknown(self.run.run_id, unknown))
        if not (turns.is_live and turns.is_alone):
            intent = Intent.BEGIN if begun is None else Intent.CONTINUE
            await turns.to_frontier(self.fiber, self.scope, intent)
            operator = self.scope.cancelling_operator()
            if operator is not None:
                self._add_interrupted(operator)
                await self.fiber.leave_for(operator)
            if self.run.ends_at_rest is not None:
                await self.fiber.check(self.scope)
        if is_unknown:
            raise await self._leave_unknown()
        self._check_savable()
        if definition.connection is not None:
            self._check_transactions(definition.connection)
        if begun is not None:
            turns.order.forget_values(path)
        known = turns.order.begun.get(path)
        number = 1 if known is None else known.attempt + 1
        attempts = turns.order.attempts.get(path)
        if attempts is not None:
            attempts.begin_another()
        must_save = self._begin(number)
        return await self.execute(number, must_save=must_save)

    async def _leave_unknown(self) -> BaseException:
        """Return what to raise instead of executing the step again, which may have happened."""
        run, unknown = self.run, OutcomeUnknown(self.run.run_id, self.path)
        if not run.requests.is_being_cancelled:
            return run.halt(unknown)
        # No cancellation reaches it, in an acquisition or a finalizer. The run ends without its outcome.
        logger.warning(
            "step %r of cancelled run %r may have happened: it is neither executed again nor undone",
            self.path,
            run.run_id,
        )
        await self._record_error(unknown, retryable=False)
        return unknown

    def _unknown_within(self) -> str | None:
        """Return the step within this one whose outcome is unknown, and which must not run again."""
        order, path = self.fiber.turns.order, self.path
        found = (
            one for one in order.open if is_within(one, path) and order.begun[one].at_most_once
        )
        return None if self.run.force else next(found, None)

    async def _continue(self, number: int) -> object:
        """Continue an attempt that has begun something within the step."""
        attempts = self.fiber.turns.order.attempts.get(self.path)
        if attempts is not None:
            # It counts when it fails.
            attempts.cut_off = False
        try:
            return await self.execute(number, must_save=False)
        finally:
            # Another attempt begins anew.
            self.fiber.turns.order.forget_values(self.path)

    def _begin(self, number: int) -> bool:
        """Record that an attempt begins. Return whether it must be saved first."""
        run, fiber, definition = self.run, self.fiber, self.definition
        fiber.begins()
        self.arguments = arguments = self._all_arguments()
        digest, preview = (None, "") if arguments is None else arguments
        entry = BeforeStep(
            self.path,
            number,
            run.time_of_beginning(),
            digest,
            preview,
            definition.at_most_once,
            fiber.turns.turn,
            fiber.items_to_record(),
        )
        run.add(entry, fiber.step)
        fiber.turns.order.begun[self.path] = entry
        policy = run.checkpoints.policy
        # What precedes a transaction is saved in it.
        is_due = definition.connection is None and policy.is_due(run.writer.completed_since_save)
        return definition.at_most_once or is_due

    def execute(self, number: int, *, must_save: bool) -> Coroutine[Any, Any, object]:
        """Run the body once it may begin, and record how it ends."""
        execute = self._surrounded if self.run.surrounding else self._execute
        return execute(number, must_save=must_save)

    async def _surrounded(self, number: int, *, must_save: bool) -> object:
        began = AttemptBegan(self.run.run_id, self.path, self.definition.name, number)
        with Surroundings(self.run.surrounding, began):
            return await self._execute(number, must_save=must_save)

    async def _execute(self, number: int, *, must_save: bool) -> object:
        run, fiber, definition, scope, path = (
            self.run,
            self.fiber,
            self.definition,
            self.scope,
            self.path,
        )
        began = run.clock.monotonic()
        at_most_once = definition.at_most_once or scope.is_at_most_once
        current = CurrentStep(run.run_id, path, number, self.step.make_info, at_most_once)
        inside = scope.inside_step(fiber, current)
        token = running_step.set(current)
        outer = fiber.enter_step(path)
        if scope.observer is not None:
            scope.observer.began(path)
        try:
            if must_save:
                await fiber.save(scope, required=definition.at_most_once)
            if definition.timeout is None:
                outcome = await interpret(self.step.source, self.env, inside)
            else:
                outcome = await run.stopping.supervised(partial(self._limited, inside))
            if definition.connection is not None:
                outcome = await self._transact(outcome, inside, began)
            if type(outcome) is TypedFailure and scope.hides_stop(outcome.error):
                await raise_caught_cancellation()
        except BaseException as raised:
            fiber.leave_step(outer)
            await self._record_bad_end(current, raised)
            raise
        finally:
            running_step.reset(token)
        fiber.leave_step(outer)
        if scope.observer is not None:
            scope.observer.ended(path, exit_of(outcome))
        if type(outcome) is TypedFailure:
            self._check_outcome(current, outcome.error)
            await self._record_failure(outcome)
            # Without its parts, which are not recorded, so that every life continues with the same
            # failure.
            return TypedFailure(outcome.error, outcome.trail)
        if definition.connection is None:
            if not fiber.turns.is_live:
                await self._reach_end()
            self._add_completed(outcome, began)
        if current.is_cancelled:
            await anyio.lowlevel.checkpoint()
        return outcome

    async def _limited(self, inside: Scope) -> object:
        """Run the body of a step that has a timeout."""
        seconds = self.definition.timeout
        operator = Operator(inside, "timeout")
        late = partial(operator.timed_out, seconds)
        return await interpret_limited(operator, self.step.source, self.env, seconds, late)

    # Transactions.

    def _check_transactions(self, kind: Literal["plain", "async"]) -> None:
        """Halt if the store has no transactions for the step, before the step does anything."""
        run, name = self.run, self.definition.name
        try:
            store = transactions_of(run.checkpoints.store, f"transaction {name!r}")
        except StoreUnavailable as error:
            raise run.halt(error) from None
        if store.has_async_connections != (kind == "async"):
            wanted = "an async function" if store.has_async_connections else "a plain function"
            reason = f"its connections are for {wanted}, and that of transaction {name!r} is {kind}"
            raise run.halt(StoreUnavailable(repr(store), reason))

    async def _transact(self, body: Any, inside: Scope, began: float) -> object:
        """Execute the body in a transaction that also saves how the step has ended."""
        # The fiber keeps its turn, so nothing comes between the beginning and the end.
        outcome, cancelled = await self.fiber.shield(self._in_transaction(body, began))
        if cancelled is not None:
            inside.postpone(cancelled)
        return outcome

    async def _in_transaction(self, body: TransactionCall, began: float) -> object:
        delays = _CONFLICT_DELAYS.delays()
        while True:
            try:
                return await self._try_transaction(body, began)
            except TransactionUndone as undone:
                delay = None if undone.is_final else next(delays, None)
                if delay is None:
                    return body.failed(undone.error)
                await anyio.sleep(delay)

    async def _try_transaction(self, body: TransactionCall, began: float) -> object:
        run, path = self.run, self.path
        store = transactions_of(run.checkpoints.store, path)
        body.has_begun = False
        async with run.writer.reserved(), AsyncExitStack() as stack:
            try:
                transaction = await stack.enter_async_context(store.transaction())
                value = await transaction.perform(body)
            except TransactionUndone:
                raise
            except Exception as error:
                if body.has_begun:
                    return body.failed(error)
                if not isinstance(error, CheckpointError):
                    error = StoreUnavailable(repr(store), f"it raised {error!r}")
                raise run.halt(error) from error.__cause__
            await run.writer.save_in(transaction, partial(self._add_completed, value, began))
            return value

    def _check_savable(self) -> None:
        """Halt if the output of the step could not be saved, before the step does anything."""
        run, definition = self.run, self.definition
        if run.savable.get(definition.name) is definition:
            return
        try:
            types = run.checkpoints.known(definition.types)
            check_savable(definition.output, types, path=self.path)
        except NotSerializable as error:
            raise run.halt(error) from error
        run.savable[definition.name] = definition

    # The end of an attempt.

    async def _reach_end(self) -> None:
        """Let the end of the step be an event of this life, so that it comes after what is recorded."""
        fiber = self.fiber
        await fiber.turns.to_frontier(fiber, self.scope, Intent.END)

    def _add_completed(self, value: Any, began: float) -> None:
        """Add the entry that the step has succeeded. Halt the run if its value cannot be saved."""
        run, definition, path = self.run, self.definition, self.path
        output = run.encode(value, path, definition.types, definition.output)
        run.writer.completed_since_save += 1
        run.last_completed = path
        # In microseconds: the other digits say nothing.
        duration = round(run.clock.monotonic() - began, 6)
        stands = self._has_stood()
        run.end_step(Completed(path, output, duration, run.now(), stands, None, run.turns.turn))
        self.fiber.succeeds()
        self.fiber.output = value

    def _has_stood(self) -> bool:
        """Return whether something has begun because an operator has cancelled the step."""
        return bool(self.scope.operators) and any(
            cause.stands
            for operator in self.scope.operators
            if operator.is_decided
            for cause in operator.causes
        )

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
            raise run.halt(unknown)

    async def _record_failure(self, failed: TypedFailure) -> None:
        definition, error = self.definition, failed.error
        retryable = not definition.may_have_happened(error)
        may_retry = False
        try:
            may_retry = retryable = retryable and definition.is_retryable(error)
        except Exception:
            # A broken predicate must not hide the failure, or prevent its recording.
            logger.exception("the retryable predicate of step %r raised", self.path)
        delay = self._next_delay() if may_retry else None
        self.retry_at = None if delay is None else self.run.time_after(delay)
        await self._record_error(failed, retryable)

    def _next_delay(self) -> float | None:
        """Return the delay before the next attempt, or None if the last one was."""
        retry = self.definition.retry
        if retry is None:
            return None
        order, path = self.run.turns.order, self.path
        known = order.attempts.get(path)
        spent = 0 if known is None else known.spent
        assert self.since is not None
        # An attempt that a resume continues may have been spent.
        failed = max(0, order.begun[path].attempt - spent - 1)
        return retry.next_delay(failed, max(0.0, self.run.now() - self.since))

    async def _record_bad_end(self, current: CurrentStep, raised: BaseException) -> None:
        """Record the end of an attempt by a defect or an interruption."""
        run, path, scope = self.run, self.path, self.scope
        if scope.observer is not None:
            scope.observer.ended(path, exit_of_raised(raised))
        if isinstance(raised, Exception):
            self._check_outcome(current, raised)
            add_note(raised, f"in step {path!r} of run {run.run_id!r}, attempt {current.attempt}")
        if run.writer.halted is not None or run.planning is not None:
            return
        hides_stop = isinstance(raised, Exception) and scope.hides_stop(raised)
        if isinstance(raised, Exception) and not hides_stop:
            await self._record_error(raised, True)
            return
        operator = None
        # What a stop cuts off is not recorded.
        if is_cancellation(raised) and not isinstance(raised, Halt) and not run.turns.is_over:
            operator = scope.cause()
        if operator is not None:
            if not self.fiber.turns.is_live:
                await self._reach_end()
            self._add_interrupted(operator)
        elif run.turns.is_live:
            run.cut_off = path
            reason = interruption_reason()
            interrupted = Interrupted(path, in_progress=True, reason=reason, at=run.now())
            run.interrupted_at = run.writer.add(interrupted)
            with run.writer.last_saves():
                await run.writer.save()
        if hides_stop:
            await raise_caught_cancellation()

    def _add_interrupted(self, operator: Operator) -> None:
        """Add the event that an operator has cut the step off."""
        run, fiber, path = self.run, self.fiber, self.path
        fiber.adopt(operator)
        inside = void_with(fiber.open_failures(), within=path)
        entry = Interrupted(
            path,
            in_progress=True,
            reason="cancelled",
            at=run.now(),
            cancelled=True,
            inside=in_ranges(inside),
            stands=self._has_stood(),
            turn=run.turns.turn,
        )
        fiber.follows(path, run.end_step(entry))

    async def _record_error(self, ended: TypedFailure | Exception, retryable: bool) -> None:
        run, fiber, path, retry_at = self.run, self.fiber, self.path, self.retry_at
        if not run.turns.is_live:
            await self._reach_end()
        types = run.checkpoints.known(self.definition.types)
        record = write_end(ended, types)
        error: object = ended.error if isinstance(ended, TypedFailure) else ended
        inside = [] if retry_at else void_with(fiber.open_failures(), within=path)
        # What it fails with again is not tried again.
        retryable = retryable and not fiber.has_stood(error, path)
        entry = Failed(
            path,
            record,
            retryable,
            run.now(),
            retry_at,
            in_ranges(inside),
            self._has_stood(),
            run.turns.turn,
        )
        number = run.end_step(entry)
        if retry_at is None:
            unreadable = None
            # A defect that cannot be rebuilt comes back as a RecordedDefect.
            if not record.is_defect:
                unreadable = _why_unreadable(error, record, types, path)
            fiber.failures = [
                Cause(
                    *[(path, one) for one in (*inside, number)],
                    step=path,
                    error=error,
                    unreadable=unreadable,
                    is_retryable=retryable,
                )
            ]
        else:
            fiber.failures = []
        if run.checkpoints.policy.on_error:
            await self._save_failure()

    async def _save_failure(self) -> None:
        run = self.run
        if run.turns.is_unordered:
            await run.writer.save()
        else:
            # The fiber goes on in the same turn, as it does in a replay.
            run.stopping.start(run.writer.save_late)


def _why_unreadable(
    error: object, record: ErrorRecord, types: KnownTypes, path: str
) -> NotSerializable | None:
    """Return why a resume could not rebuild an error; None if it can."""
    try:
        again = read_error(record, path, types)
    except NotSerializable as unreadable:
        return unreadable
    if is_exact(error, record, again, types):
        return None
    return NotSerializable(
        path, f"its failure {safe_repr(error)} would come back as {safe_repr(again)}"
    )


def _numbers_in(ranges: Ranges) -> list[int]:
    return [number for first, last in ranges for number in range(first, last + 1)]
