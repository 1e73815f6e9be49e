"""The work of a job, and its result: read items, map each of them, and reduce the values by groups."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from returns.maybe import Maybe, Nothing, Some

from effectflow.checkpoint.entries import ErrorRecord
from effectflow.checkpoint.errors import NotSerializable, StepInputChanged
from effectflow.checkpoint.failures import read_error, write_error
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.replay import DEAD_LETTER, RecordedStep
from effectflow.checkpoint.step import StepDefinition, durable, save_now
from effectflow.checkpoint.values import KnownTypes, Tree, digest_of, encode_arguments
from effectflow.effects import (
    Effect,
    Executor,
    ExecutorLost,
    TimedOut,
    WorkerLost,
    die,
    fail,
    pure,
    suspend,
)
from effectflow.effects.errors import Copyable
from effectflow.effects.interpreter import interpret
from effectflow.effects.nodes import AndThen, AnyEffect, Failed, Named, Perform, Suspend
from effectflow.effects.paths import child_path, step_path
from effectflow.effects.reduce import reduction_of
from effectflow.effects.scope import Scope

if TYPE_CHECKING:
    from effectflow.checkpoint.run import Run

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)
A_co = TypeVar("A_co", covariant=True)

_MAPPED = StepDefinition("mapped", output=int)
"""The step that ends the map phase: once it is complete, the items of the job are known."""


@dataclass(frozen=True, slots=True)
class ItemFailure(Generic[E_co]):
    """A failed attempt of an item.

    Attributes:
        error: its error; WorkerLost if each worker that ran the item died, and TimedOut if the attempt
            took too long, even if `map` does not declare it.
        began_at, ended_at: when the attempt began and ended, aware, in UTC.
    """

    error: E_co | WorkerLost | TimedOut
    began_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class DeadLetter(Generic[E_co]):
    """An item that was set aside after its last attempt failed.

    Attributes:
        key: the item's key.
        item: the item.
        error: the error of the last attempt.
        attempts: the number of attempts, over all retries and lives of the run. Attempts that a crash
            interrupted count as well.
        failures: the attempts that failed, oldest first.
    """

    key: str
    item: object
    error: E_co | WorkerLost | TimedOut
    # Not shown: a crash adds attempts, and tests compare what a job shows with and without crashes.
    attempts: int = field(repr=False)
    failures: tuple[ItemFailure[E_co], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class JobResult(Generic[A_co, E_co]):
    """The result of a job.

    Attributes:
        value: the values of all items that succeeded, reduced.
        items: the number of items, without those that were dropped. Dead letters are included.
        dead_letters: the items that failed, in the order of the items.
    """

    value: A_co
    items: int
    dead_letters: tuple[DeadLetter[E_co], ...] = ()


class ItemFailed(Copyable, Exception, Generic[E]):
    """The last attempt of an item failed, which stopped the job.

    Attributes:
        job: the job's name.
        key: the item's key.
        error: the error of the last attempt, as in `ItemFailure`.
        attempts: the number of attempts, as in `DeadLetter`.

    A resume retries the item, unless `map` is a `@step` that is not retryable.
    """

    def __init__(
        self,
        job: str,
        key: str,
        error: E | WorkerLost | TimedOut,
        attempts: int,
        *,
        is_retryable: bool = True,
    ) -> None:
        self.job = job
        self.key = key
        self.error = error
        self.attempts = attempts
        advice = _RETRYABLE if is_retryable else _NOT_RETRYABLE
        super().__init__(f"item {key!r} of job {job!r} failed with {error!r}. {advice}")


_RETRYABLE = 'A resume retries the item; on_item_failure="dead_letter" sets such items aside'
_NOT_RETRYABLE = (
    "Its step is not retryable, so a resume fails again without running it; "
    'on_item_failure="dead_letter" sets such items aside, also in this run if it is resumed with '
    "force=True"
)


class TooManyFailures(Copyable, Exception):
    """More items of a job failed than `max_failures` allows, which stopped the job.

    Attributes:
        job: the job's name.
        max_failures: the number of items that may fail, or their share.
        failed: the number of items that had failed.
    """

    def __init__(self, job: str, max_failures: float, failed: int) -> None:
        self.job = job
        self.max_failures = max_failures
        self.failed = failed
        super().__init__(job, max_failures, failed)

    def __str__(self) -> str:
        allowed = self.max_failures
        most = f"{allowed:.0%} of the" if isinstance(allowed, float) else str(allowed)
        return (
            f"more than {most} items of job {self.job!r} failed: {self.failed}. Retry them with "
            "retry_dead_letters or `effectflow dead-letters RUN --retry`, or drop them with "
            "drop_dead_letters or `--drop`; a resume with a higher max_failures continues as well"
        )


@dataclass(frozen=True, slots=True)
class Job:
    """The body of a job, from its input to the effect that yields its result.

    Attributes:
        name: the job's name.
        items: returns the items for an input, or an effect that yields them.
        key: returns the key of an item.
        map_step, map: the durable step of each item, with its retries, and the user's function.
        parameter: the name under which that step records its item; empty if it does not.
        executor: where `map` runs, or a function of the environment that returns that; in this event
            loop if None.
        timeout: the seconds that each attempt may take; None for no limit.
        max_per_second: the number of attempts that begin per second; None for no limit.
        keeps_dead_letters: whether a failed item is set aside; otherwise it stops the job.
        max_failures: the number or share of items that may fail; None for no limit.
        reduce_step, reduce: the durable step of each group, and the user's function.
        max_parallel: the number of items and groups that run at once.
        fan_in: the number of values in a group.
    """

    name: str
    items: Callable[[Any], Any]
    key: Callable[[Any], object]
    map_step: StepDefinition
    map: Callable[[Any], AnyEffect]
    parameter: str
    executor: Executor | Callable[[Any], Executor] | None
    timeout: float | None
    max_per_second: float | None
    keeps_dead_letters: bool
    max_failures: float | None
    reduce_step: StepDefinition
    reduce: Callable[[list[Any]], AnyEffect]
    max_parallel: int
    fan_in: int

    def __call__(self, input: Any) -> AnyEffect:
        def begin(_: Scope) -> AnyEffect:
            source = self.items(input)
            if isinstance(source, Effect):
                return cast(AnyEffect, source).and_then(self._run)
            return self._run(source)

        return Named(Suspend(begin), self.name, f"in job {self.name!r}")

    def _run(self, source: Any) -> AnyEffect:
        if not isinstance(source, Iterable | AsyncIterable):
            raise TypeError(
                f"`items` of job {self.name!r} must return a sync or async iterable, or an effect that "
                f"yields one, not {source!r}"
            )
        items = cast("Iterable[Any]", source)

        def begin(scope: Scope) -> AnyEffect:
            check = _refuse_new_items(scope)
            total = len(items) if isinstance(items, Sized) else None
            failures = _Failures(self.name, self.max_failures, total)
            pace = None if self.max_per_second is None else _Pace(1 / self.max_per_second)

            def map_item(item: Any) -> AnyEffect:
                key = self._key_of(item)
                check(key)
                return Suspend(ItemWork(self, key, item, failures, pace).begin)

            def end_map_phase(count: int) -> AnyEffect:
                ended = _end_map_phase(count)
                return ended.and_then(lambda _: failures.check(count) or pure(None))

            return (
                reduction_of(
                    f"job {self.name!r}",
                    items,
                    map_item,
                    self._reduced,
                    limit=self.max_parallel,
                    fan_in=self.fan_in,
                    key=self._key_of,
                    on_mapped=end_map_phase,
                )
                .and_then(self._result)
                .tap(lambda _: _end_phase("reduce"))
            )

        return Suspend(begin)

    def _key_of(self, item: object) -> str:
        """Return the key of an item, as text that every encoding supports; file names may not be."""
        key = str(self.key(item))
        return key if key.isascii() else key.encode("utf-8", "backslashreplace").decode()

    def work(self, env: Any, item: object) -> AnyEffect:
        """Return the work of one attempt. Only running it calls the user's function."""
        function, executor = self.map, self.executor
        if executor is None:
            work = suspend(lambda: function(item))
        else:
            chosen = cast("Executor", executor)
            if not hasattr(executor, "apply"):
                chosen = cast("Callable[[Any], Executor]", executor)(env)
            # Only the function and the item are sent. Losing the executor is not a failure of the item:
            # it stops the job, and a resume continues.
            work = suspend(lambda: chosen.apply(function, item).recover(ExecutorLost, die))
        return work if self.timeout is None else work.timeout(self.timeout)

    def _reduced(self, parts: list[PartialResult]) -> AnyEffect:
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
        definition = self.reduce_step
        if whole.retry > 0:
            # A dead letter has joined the group, so it is reduced again, as another step.
            definition = replace(definition, name=f"{definition.name} after retry {whole.retry}")
        # A resume must find the same items here.
        arguments = whole.digest, f"({whole.count} items, {whole.first!r} to {whole.last!r})"
        step = durable(definition, suspend(lambda: self.reduce(values)), lambda _: arguments)
        return step.map(lambda value: replace(whole, value=Some(value)))

    def _result(self, part: PartialResult | None) -> AnyEffect:
        """Return the effect that makes the job's result from the last part; None without items."""
        count, letters = (0, ()) if part is None else (part.count, part.dead_letters)
        if part is not None and part.value is not Nothing:
            return pure(JobResult(part.value.unwrap(), count, letters))
        step = durable(self.reduce_step, suspend(lambda: self.reduce([])))
        return step.map(lambda value: JobResult(value, count, letters))


class ItemWork:
    """The attempts of one item in this life, up to its part of the result."""

    __slots__ = (
        "_begun",
        "_failed",
        "_is_paced",
        "_retries",
        "failures",
        "item",
        "job",
        "key",
        "pace",
    )

    def __init__(
        self, job: Job, key: str, item: object, failures: _Failures, pace: _Pace | None
    ) -> None:
        self.job = job
        self.key = key
        self.item = item
        self.failures = failures
        self.pace = pace
        self._begun = 0
        self._retries = 0
        self._failed: list[ItemFailure[Any]] = []
        self._is_paced = False

    def begin(self, scope: Scope) -> AnyEffect:
        """Return the effect that maps the item."""
        if self.job.keeps_dead_letters and isinstance(scope.flow, DurableFlow):
            # A dead letter has the item, so one that cannot be saved is refused before it acts.
            self._saved_item(scope.flow.run)
        return self.mapped(0)

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
        flow = scope.flow
        if isinstance(flow, DurableFlow) and (self._recorded(flow) or not flow.run.records):
            return
        assert self.pace is not None
        await self.pace.wait(scope)
        self._is_paced = True

    async def _attempt(self, env: Any, scope: Scope) -> Any:
        """Attempt the item once, within its step."""
        if self.pace is not None and not self._is_paced:
            await self.pace.wait(scope)
        self._is_paced = False
        self._begun += 1
        began_at = scope.clock.now()
        try:
            outcome = await interpret(self.job.work(env, self.item), env, scope)
        except TimedOut as late:
            # A time limit within `map` that it does not declare: no bug, but a failure of this item.
            outcome = Failed(late)
        if outcome.__class__ is Failed:
            self._failed.append(ItemFailure(outcome.error, began_at, scope.clock.now()))
        return outcome

    async def _failed_step(self, error: Any, env: Any, scope: Scope) -> Any:
        """Set the item aside, or stop the job, after the last attempt has failed."""
        flow, job = scope.flow, self.job
        error = self._failed[-1].error if self._failed else error
        if not isinstance(flow, DurableFlow):
            if not job.keeps_dead_letters:
                return Failed(self._stopped(error, self._begun))
            return self._kept(DeadLetter(self.key, self.item, error, self._begun, (*self._failed,)))
        if not job.keeps_dead_letters:
            earlier = flow.run.recording.dead_letters.get(flow.path_to_come(DEAD_LETTER))
            if earlier is None:
                return Failed(self._stopped(error, self._attempts_of(flow)))
            # The run kept dead letters earlier, which settled the failures of these items.
        letter = await flow.set_aside(scope, lambda: self._content(flow))
        if letter.is_dropped:
            return PartialResult.of_dropped(self.key)
        if letter.retry is not None or not job.keeps_dead_letters:
            self._retries += 1
            again = self.mapped(letter.retry or flow.run.recording.reopenings + 1)
            return await interpret(again, env, scope)
        kept = self._kept(
            DeadLetter(self.key, self.item, error, self._attempts_of(flow), self._failures_of(flow))
        )
        failed = None if scope.limit == math.inf else letter.failed
        return self.failures.exceeded(failed) or kept

    def _kept(self, letter: DeadLetter[Any]) -> PartialResult:
        self.failures.failed += 1
        return PartialResult.of_dead_letter(letter)

    def _stopped(self, error: Any, attempts: int) -> ItemFailed[Any]:
        is_retryable = self.job.map_step.is_retryable(error)
        return ItemFailed(self.job.name, self.key, error, attempts, is_retryable=is_retryable)

    def _content(self, flow: DurableFlow) -> dict[str, Any]:
        """Return what the journal has of a dead letter, after a check that a resume can rebuild it."""
        run, types = flow.run, self.job.map_step.types
        for failure in self._failed[:-1]:
            _read(run, write_error(failure.error, types, is_defect=False), flow.path, types)
        return {"item": self._saved_item(run), "failed": self.failures.failed + 1}

    def _recorded(self, flow: DurableFlow) -> RecordedStep | None:
        """Return what earlier lives recorded of the step that is attempted now."""
        path = step_path(flow.path, self.job.map_step.name, self._retries + 1)
        return flow.run.recording.steps.get(path)

    def _all_recorded(self, flow: DurableFlow) -> list[RecordedStep]:
        name, steps = self.job.map_step.name, flow.run.recording.steps
        paths = [step_path(flow.path, name, number + 1) for number in range(self._retries + 1)]
        return [steps[path] for path in paths if path in steps]

    def _attempts_of(self, flow: DurableFlow) -> int:
        return self._begun + sum(step.attempts for step in self._all_recorded(flow))

    def _failures_of(self, flow: DurableFlow) -> tuple[ItemFailure[Any], ...]:
        types = self.job.map_step.types
        earlier = [
            ItemFailure(
                _read(flow.run, failure.error, flow.path, types),
                datetime.fromtimestamp(failure.began, UTC),
                datetime.fromtimestamp(failure.ended, UTC),
            )
            for step in self._all_recorded(flow)
            for failure in step.failures
        ]
        return (*earlier, *self._failed)


def _read(run: Run, record: ErrorRecord, path: str, types: KnownTypes) -> Any:
    try:
        return read_error(record, path, types)
    except NotSerializable as unreadable:
        raise run.writer.halt(unreadable) from unreadable


class _Failures:
    """Counts the dead letters of one run of a job, and knows how many are allowed.

    Attributes:
        failed: the number of dead letters.
    """

    def __init__(self, job: str, most: float | None, total: int | None) -> None:
        self.job = job
        self.most = most
        self.total = total
        self.failed = 0

    def exceeded(self, failed: int | None = None) -> Failed | None:
        """Return the failure of the job if too many items have failed, as far as that is known.

        Parameters:
            failed: how many had failed when an earlier life decided that; by default those so far.
        """
        failed = self.failed if failed is None else failed
        most = self.most
        if most is None or (isinstance(most, float) and self.total is None):
            return None
        share = failed / self.total if isinstance(most, float) and self.total else failed
        return Failed(TooManyFailures(self.job, most, failed)) if share > most else None

    def check(self, total: int) -> AnyEffect | None:
        """Return the failure of the job if too many of all items have failed."""
        self.total = total
        failed = self.exceeded()
        return None if failed is None else fail(failed.error)


class _Pace:
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


@dataclass(frozen=True, slots=True)
class PartialResult:
    """The partial result of consecutive items.

    Attributes:
        value: the value of the items; nothing if all of them are dead letters.
        dead_letters: the items that failed, in order.
        count: the number of items.
        first, last: the keys of the first and the last item.
        digest: the key of a single item; for several, a digest of their keys.
        retry: the reopening of the run that changed the value last; 0 for none.
        is_reduced: whether `reduce` made the value.
    """

    value: Maybe[Any]
    dead_letters: tuple[DeadLetter[Any], ...]
    count: int
    first: str
    last: str
    digest: str
    retry: int = 0
    is_reduced: bool = False

    @staticmethod
    def of_item(key: str, value: object, *, retry: int = 0) -> PartialResult:
        """Return the part of an item that succeeded."""
        return PartialResult(Some(value), (), 1, key, key, key, retry)

    @staticmethod
    def of_dead_letter(letter: DeadLetter[Any]) -> PartialResult:
        """Return the part of an item that failed."""
        return PartialResult(Nothing, (letter,), 1, letter.key, letter.key, letter.key)

    @staticmethod
    def of_dropped(key: str) -> PartialResult:
        """Return the part of an item that failed and does not count any more."""
        return PartialResult(Nothing, (), 0, key, key, key)

    @staticmethod
    def of_group(parts: Sequence[PartialResult]) -> PartialResult:
        """Return the part of all items of these parts, still without a value."""
        return PartialResult(
            value=Nothing,
            dead_letters=tuple(letter for part in parts for letter in part.dead_letters),
            count=sum(part.count for part in parts),
            first=parts[0].first,
            last=parts[-1].last,
            digest=digest_of([part.digest for part in parts]),
            retry=max(part.retry for part in parts),
            is_reduced=True,
        )


def _refuse_new_items(scope: Scope) -> Callable[[str], None]:
    """Return a check of the keys of the job that comes next: none may be new after its map phase.

    The check halts the run with StepInputChanged, before the item begins a step.
    """
    flow = scope.flow
    mapped = None
    if isinstance(flow, DurableFlow):
        mapped = flow.run.recording.steps.get(flow.path_to_come(_MAPPED.name))
    if not isinstance(flow, DurableFlow) or mapped is None or not mapped.is_completed:
        return lambda key: None
    run, path, count = flow.run, flow.path_to_come("map"), mapped.output

    def check(key: str) -> None:
        if child_path(path, key) not in run.recording.flows:
            raise run.writer.halt(
                StepInputChanged(run.run_id, path, f"({count} items)", f"(a new item {key!r})")
            )

    return check


def _end_map_phase(count: int) -> AnyEffect:
    # A step, so that a resume must find the same number of items.
    arguments = (digest_of(count), f"({count} items)")
    mapped = durable(_MAPPED, pure(count), lambda _: arguments)
    return AndThen(mapped, lambda _: _end_phase("map"))


def _end_phase(phase: str) -> AnyEffect:
    """Make a phase durable as soon as it has ended.

    If every step is durable before the next one begins, that needs no save of its own.
    """

    def end(scope: Scope) -> AnyEffect:
        flow = scope.flow
        if not isinstance(flow, DurableFlow) or flow.run.checkpoints.policy.every_steps == 1:
            return pure(None)
        return save_now(f"the {phase} phase has ended")

    return Suspend(end)
