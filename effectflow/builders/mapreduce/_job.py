"""How a job runs: it maps the items, each in a durable step, and reduces the values by groups."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Callable, Iterable, Sized
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from returns.maybe import Nothing, Some

from effectflow.builders.mapreduce._results import (
    DeadLetter,
    ItemFailed,
    ItemFailure,
    JobResult,
    PartialResult,
    TooManyFailures,
)
from effectflow.builders.progress import JobPlace
from effectflow.builders.views import View
from effectflow.checkpoint.current_run import save_now
from effectflow.checkpoint.durable_fiber import DurableFiber
from effectflow.checkpoint.entries import ErrorRecord
from effectflow.checkpoint.errors import CorruptCheckpoint, NotSerializable
from effectflow.checkpoint.failures import read_error, write_error
from effectflow.checkpoint.step import StepDefinition, durable
from effectflow.checkpoint.values import KnownTypes, Tree, digest_of, encode_arguments
from effectflow.effects import Effect, Executor, ExecutorLost, TimedOut, die, fail, pure, suspend
from effectflow.effects.interpreter import interpret
from effectflow.effects.nodes import AndThen, AnyEffect, Named, Perform, Suspend
from effectflow.effects.paths import step_path
from effectflow.effects.reduce import reduction_of
from effectflow.effects.scope import Scope
from effectflow.effects.trails import TypedFailure
from effectflow.runs.reopening import DEAD_LETTER, failures_in, letter_of

if TYPE_CHECKING:
    from effectflow.checkpoint.run import Run

VIEW = View(job=lambda _: JobPlace(""))

_MAPPED = StepDefinition("mapped", output=int)
"""The step that ends the map phase: once it is complete, the items of the job are known."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its author declares it.

    Attributes:
        name: the job's name.
        items: returns the items for an input, or an effect that yields them.
        key: returns the key of an item.
        map_step, map: the durable step of each item, with its retries, and the user's function.
        parameter: the name under which that step records its item; empty if it does not.
        executor: returns the executor that runs `map`, for an environment; None for this event loop.
        timeout: the seconds that each attempt may take; None for no limit.
        per_second: the number of attempts that begin per second; None for no limit.
        keeps_dead_letters: whether a failed item is set aside; otherwise it stops the job.
        max_failures: the number or share of items that may fail; None for no limit.
        reduce_step, reduce: the durable step of each group, and the user's function.
        limit: the number of items and groups that run at once.
        fan_in: the number of values in a group.
    """

    name: str
    items: Callable[[Any], Any]
    key: Callable[[Any], object]
    map_step: StepDefinition
    map: Callable[[Any], AnyEffect]
    parameter: str
    executor: Callable[[Any], Executor] | None
    timeout: float | None
    per_second: float | None
    keeps_dead_letters: bool
    max_failures: float | None
    reduce_step: StepDefinition
    reduce: Callable[[list[Any]], AnyEffect]
    limit: int
    fan_in: int

    def key_of(self, item: object) -> str:
        """Return the key of an item, as text that every encoding supports; file names may not be."""
        key = str(self.key(item))
        return key if key.isascii() else key.encode("utf-8", "backslashreplace").decode()

    def work(self, env: Any, item: object) -> AnyEffect:
        """Return the work of one attempt. Only running it calls the user's function."""
        function = self.map
        if self.executor is None:
            work = suspend(lambda: function(item))
        else:
            executor = self.executor(env)
            # Only the function and the item are sent. Losing the executor is not a failure of the item:
            # it stops the job, and a resume continues.
            work = suspend(lambda: executor.apply(function, item).recover(ExecutorLost, die))
        return work if self.timeout is None else work.timeout(self.timeout)


def job_body(job: Job, input: Any) -> AnyEffect:
    """Return the effect that does a job for an input, and yields its JobResult."""

    def begin(*_: object) -> AnyEffect:
        source = job.items(input)
        if isinstance(source, Effect):
            return cast(AnyEffect, source).and_then(partial(_map_and_reduce, job))
        return _map_and_reduce(job, source)

    return Named(Suspend(begin), job.name, f"in job {job.name!r}")


def _map_and_reduce(job: Job, source: Any) -> AnyEffect:
    if not isinstance(source, Iterable | AsyncIterable):
        raise TypeError(
            f"`items` of job {job.name!r} must return a sync or async iterable, or an effect that "
            f"yields one, not {source!r}"
        )
    items = cast("Iterable[Any]", source)

    def begin(*_: object) -> AnyEffect:
        total = len(items) if isinstance(items, Sized) else None
        failures = FailureLimit(job.name, job.max_failures, total)
        pace = None if job.per_second is None else Pace(1 / job.per_second)

        def map_item(item: Any) -> AnyEffect:
            key = job.key_of(item)
            return Suspend(ItemWork(job, key, item, failures, pace).begin)

        def end_map_phase(count: int) -> AnyEffect:
            ended = _end_map_phase(count)
            return ended.and_then(lambda _: failures.check(count) or pure(None))

        return (
            reduction_of(
                f"job {job.name!r}",
                items,
                map_item,
                partial(_reduced, job),
                limit=job.limit,
                fan_in=job.fan_in,
                key=job.key_of,
                on_mapped=end_map_phase,
            )
            .and_then(partial(_result, job))
            .tap(lambda _: _end_phase("reduce"))
        )

    return Suspend(begin)


def _reduced(job: Job, parts: list[PartialResult]) -> AnyEffect:
    """Return the effect that makes one part of a group; None if there are no items at all."""
    if not parts:
        return pure(None)
    whole = PartialResult.of_group(parts)
    present = [part for part in parts if part.value is not Nothing]
    if not present:
        return pure(whole)
    if len(present) == 1 and present[0].is_reduced:
        return pure(replace(whole, value=present[0].value))
    values = [part.value.unwrap() for part in present]
    definition = job.reduce_step
    if whole.retry > 0:
        # A dead letter has joined the group, so it is reduced again, as another step.
        definition = replace(definition, name=f"{definition.name} after retry {whole.retry}")
    # A resume must find the same items here.
    arguments = whole.digest, f"({whole.count} items, {whole.first!r} to {whole.last!r})"
    step = durable(definition, suspend(lambda: job.reduce(values)), lambda *_: arguments)
    return step.map(lambda value: replace(whole, value=Some(value)))


def _result(job: Job, part: PartialResult | None) -> AnyEffect:
    """Return the effect that makes the job's result from the last part; None without items."""
    count, letters = (0, ()) if part is None else (part.count, part.dead_letters)
    if part is not None and part.value is not Nothing:
        return pure(JobResult(part.value.unwrap(), count, letters))
    step = durable(job.reduce_step, suspend(lambda: job.reduce([])))
    return step.map(lambda value: JobResult(value, count, letters))


def _end_map_phase(count: int) -> AnyEffect:
    # A step, so that a resume must find the same number of items.
    arguments = (digest_of(count), f"({count} items)")
    mapped = durable(_MAPPED, pure(count), lambda *_: arguments)
    return AndThen(mapped, lambda _: _end_phase("map"))


def _end_phase(phase: str) -> AnyEffect:
    """Make a phase durable as soon as it has ended.

    If every step is durable before the next one begins, this saves nothing.
    """

    def end(_env: object, scope: Scope) -> AnyEffect:
        fiber = scope.fiber
        if not isinstance(fiber, DurableFiber) or fiber.run.checkpoints.policy.every_steps == 1:
            return pure(None)
        return save_now(f"the {phase} phase has ended")

    return Suspend(end)


class ItemWork:
    """The attempts of one item in this life, up to its part of the result."""

    __slots__ = (
        "_begun",
        "_failed",
        "_is_paced",
        "failures",
        "item",
        "job",
        "key",
        "pace",
    )

    def __init__(
        self, job: Job, key: str, item: object, failures: FailureLimit, pace: Pace | None
    ) -> None:
        self.job = job
        self.key = key
        self.item = item
        self.failures = failures
        self.pace = pace
        self._begun = 0
        self._failed: list[ItemFailure[Any]] = []
        self._is_paced = False

    def begin(self, _env: object, scope: Scope) -> AnyEffect:
        """Return the effect that maps the item."""
        fiber = scope.fiber
        reopening = 0
        if isinstance(fiber, DurableFiber):
            if self.job.keeps_dead_letters:
                # A dead letter has the item, so one that cannot be saved is rejected before it acts.
                self._saved_item(fiber.run)
            reopening = fiber.turns.order.retried.get(step_path(fiber.path, DEAD_LETTER, 1), 0)
        return self.mapped(reopening)

    def _saved_item(self, run: Run) -> Tree:
        where = f"the item {self.key!r} of job {self.job.name!r}, which a dead letter would have"
        return run.encode(self.item, where, self.job.map_step.types)

    def mapped(self, reopening: int) -> AnyEffect:
        """Return the step that maps the item, after a reopening of the run or as the first (0)."""
        job, definition = self.job, self.job.map_step
        # A resume notices if the item of a `@step` has changed.
        arguments = partial(encode_arguments, {job.parameter: self.item}, path=definition.name)
        step = durable(definition, Perform(self._attempt), arguments if job.parameter else None)
        in_turn = (
            step if self.pace is None else AndThen(Perform(self._wait_for_turn), lambda _: step)
        )
        mapped = in_turn.map(lambda value: PartialResult.of_item(self.key, value, retry=reopening))
        return mapped.or_else(lambda error: Perform(partial(self._failed_step, error)))

    async def _wait_for_turn(self, _: object, scope: Scope) -> None:
        """Wait for the first attempt's turn before the step begins, so that a crash cuts off nothing."""
        fiber = scope.fiber
        assert self.pace is not None
        if isinstance(fiber, DurableFiber):
            if not fiber.turns.is_live:
                return
            # No event: what happens next is that the step begins.
            await fiber.unrecorded(scope, self.pace.wait(scope))
        else:
            await self.pace.wait(scope)
        self._is_paced = True

    async def _attempt(self, env: Any, scope: Scope) -> Any:
        """Attempt the item once, within its step."""
        if self.pace is not None and not self._is_paced:
            await scope.fiber.wait(scope, self.pace.wait, scope)
        self._is_paced = False
        self._begun += 1
        began_at = scope.clock.now()
        try:
            outcome = await interpret(self.job.work(env, self.item), env, scope)
        except TimedOut as late:
            # A time limit within `map` that it does not declare: no bug, but a failure of this item.
            outcome = TypedFailure(late)
        if outcome.__class__ is TypedFailure:
            self._failed.append(ItemFailure(outcome.error, began_at, scope.clock.now()))
        return outcome

    async def _failed_step(self, error: Any, env: Any, scope: Scope) -> Any:
        """Set the item aside, or stop the job, after the last attempt has failed."""
        fiber, job = scope.fiber, self.job
        error = self._failed[-1].error if self._failed else error
        if not isinstance(fiber, DurableFiber):
            if not job.keeps_dead_letters:
                return TypedFailure(self._stopped(error, self._begun))
            return self._kept(DeadLetter(self.key, self.item, error, self._begun, (*self._failed,)))
        order = fiber.turns.order
        if not job.keeps_dead_letters:
            return TypedFailure(self._stopped(error, self._attempts_of(fiber)))
        path = step_path(fiber.path, DEAD_LETTER, 1)
        try:
            recorded = letter_of(order, path) if path in order.set_aside else None
        except CorruptCheckpoint as error:
            raise fiber.run.halt(error) from error
        counts = await fiber.set_aside(scope, DEAD_LETTER, lambda: self._content(fiber))
        if not counts:
            return PartialResult.of_dropped(self.key)
        letter = DeadLetter(
            self.key, self.item, error, self._attempts_of(fiber), self._failures_of(fiber)
        )
        kept = self._kept(letter)
        return self.failures.exceeded(None if recorded is None else recorded.failed) or kept

    def _kept(self, letter: DeadLetter[Any, Any]) -> PartialResult:
        self.failures.failed += 1
        return PartialResult.of_dead_letter(letter)

    def _stopped(self, error: Any, attempts: int) -> ItemFailed[Any]:
        is_retryable = self.job.map_step.is_retryable(error)
        return ItemFailed(self.job.name, self.key, error, attempts, is_retryable=is_retryable)

    def _content(self, fiber: DurableFiber) -> dict[str, Any]:
        """Return what the journal has of a dead letter, after a check that a resume can rebuild it."""
        run, types = fiber.run, self.job.map_step.types
        for failure in self._failed[:-1]:
            _read(run, write_error(failure.error, types, is_defect=False), fiber.path, types)
        return {"item": self._saved_item(run), "failed": self.failures.failed + 1}

    def _attempts_of(self, fiber: DurableFiber) -> int:
        begun = fiber.turns.order.begun.get(step_path(fiber.path, self.job.map_step.name, 1))
        return self._begun if begun is None else begun.attempt

    def _failures_of(self, fiber: DurableFiber) -> tuple[ItemFailure[Any], ...]:
        types = self.job.map_step.types
        earlier = [
            ItemFailure(
                _read(fiber.run, failure.error, fiber.path, types),
                datetime.fromtimestamp(failure.began, UTC),
                datetime.fromtimestamp(failure.ended, UTC),
            )
            for failure in failures_in(fiber.turns.order, fiber.path)
        ]
        return (*earlier, *self._failed)


def _read(run: Run, record: ErrorRecord, path: str, types: KnownTypes) -> Any:
    try:
        return read_error(record, path, types)
    except NotSerializable as unreadable:
        raise run.halt(unreadable) from unreadable


class FailureLimit:
    """Counts the dead letters of one run of a job, and knows how many are allowed.

    Attributes:
        failed: the number of dead letters.
    """

    def __init__(self, job: str, most: float | None, total: int | None) -> None:
        self.job = job
        self.most = most
        self.total = total
        self.failed = 0

    def exceeded(self, failed: int | None = None) -> TypedFailure | None:
        """Return the failure of the job if too many items have failed, as far as that is known.

        Parameters:
            failed: how many had failed when an earlier life decided that; by default those so far.
        """
        failed = self.failed if failed is None else failed
        most = self.most
        if most is None or (isinstance(most, float) and self.total is None):
            return None
        share = failed / self.total if isinstance(most, float) and self.total else failed
        return TypedFailure(TooManyFailures(self.job, most, failed)) if share > most else None

    def check(self, total: int) -> AnyEffect | None:
        """Return the failure of the job if too many of all items have failed."""
        self.total = total
        failed = self.exceeded()
        return None if failed is None else fail(failed.error)


class Pace:
    """Lets attempts begin one after another, at least `interval` seconds apart, on the run's clock."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._next = -math.inf

    async def wait(self, scope: Scope) -> None:
        now = scope.clock.monotonic()
        turn = max(now, self._next)
        self._next = turn + self.interval
        if turn > now:
            await scope.clock.sleep(turn - now)
