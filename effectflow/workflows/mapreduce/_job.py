"""The work of a job, and its result: read items, map each of them, and reduce the values by groups."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar, cast

from returns.maybe import Maybe, Nothing, Some

from effectflow.checkpoint.errors import StepInputChanged
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.step import StepDefinition, arguments_of, durable, save_now
from effectflow.checkpoint.values import digest_of
from effectflow.effects import (
    Effect,
    Executor,
    ExecutorLost,
    RetryExhausted,
    RetryPolicy,
    WorkerLost,
    die,
    fail,
    pure,
    suspend,
)
from effectflow.effects.errors import Copyable
from effectflow.effects.nodes import AndThen, AnyEffect, Named, Perform, Suspend
from effectflow.effects.paths import child_path
from effectflow.effects.reduce import reduction_of
from effectflow.effects.scope import Scope

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)
A_co = TypeVar("A_co", covariant=True)

_MAPPED = StepDefinition("mapped", output=int)
"""The step that ends the map phase: once it is complete, the items of the job are known."""

_SET_ASIDE = "dead_letter"


@dataclass(frozen=True, slots=True)
class DeadLetter(Generic[E_co]):
    """An item that was set aside after its last attempt failed.

    Attributes:
        key: the item's key.
        error: the error of the last attempt; WorkerLost if each worker that ran the item died.
        attempts: the number of attempts, over all retries.
    """

    key: str
    error: E_co | WorkerLost
    attempts: int


@dataclass(frozen=True, slots=True)
class JobResult(Generic[A_co, E_co]):
    """The result of a job.

    Attributes:
        value: the values of all items that succeeded, reduced.
        items: the number of items, dead letters included.
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
        error: the error of the last attempt; WorkerLost if each worker that ran the item died.
        attempts: the number of attempts.

    A resume retries the item, unless `map` is a `@step` that is not retryable.
    """

    def __init__(
        self,
        job: str,
        key: str,
        error: E | WorkerLost,
        attempts: int,
        *,
        is_retryable: bool = True,
    ) -> None:
        self.job = job
        self.key = key
        self.error = error
        self.attempts = attempts
        times = "" if attempts == 1 else f" {attempts} times, at last"
        advice = _RETRYABLE if is_retryable else _NOT_RETRYABLE
        super().__init__(f"item {key!r} of job {job!r} failed{times} with {error!r}. {advice}")


_RETRYABLE = 'A resume retries the item; on_item_failure="dead_letter" sets such items aside'
_NOT_RETRYABLE = (
    "Its step is not retryable, so a resume fails again without running it; "
    'on_item_failure="dead_letter" sets such items aside, also in this run if it is resumed with '
    "force=True"
)


@dataclass(frozen=True, slots=True)
class Job:
    """The body of a job, from its input to the effect that yields its result.

    Attributes:
        name: the job's name.
        items: returns the items for an input, or an effect that yields them.
        key: returns the key of an item.
        map_step, map: the durable step of each item, and the user's function.
        parameter: the name under which that step records its item; empty if it does not.
        executor: where `map` runs; in this event loop if None.
        retry: the policy of attempts within the step of an item; a single attempt if None.
        keeps_dead_letters: whether a failed item is set aside; otherwise it stops the job.
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
    executor: Executor | None
    retry: RetryPolicy | None
    keeps_dead_letters: bool
    reduce_step: StepDefinition
    reduce: Callable[[list[Any]], AnyEffect]
    max_parallel: int
    fan_in: int

    def __call__(self, input: Any) -> AnyEffect:
        def begin(scope: Scope) -> AnyEffect:
            retries = _requested_retries(scope)
            source = self.items(input)
            if isinstance(source, Effect):
                listing = cast(AnyEffect, source)
                return listing.and_then(lambda found: self._run(found, retries))
            return self._run(source, retries)

        return Named(Suspend(begin), self.name, f"in job {self.name!r}")

    def _run(self, source: Any, retries: int) -> AnyEffect:
        if not isinstance(source, Iterable | AsyncIterable):
            raise TypeError(
                f"`items` of job {self.name!r} must return a sync or async iterable, or an effect that "
                f"yields one, not {source!r}"
            )
        items = cast("Iterable[Any]", source)

        def begin(scope: Scope) -> AnyEffect:
            check = _refuse_new_items(scope)

            def map_item(item: Any) -> AnyEffect:
                key = self._key_of(item)
                check(key)
                return self._mapped(key, item, retries)

            return (
                reduction_of(
                    f"job {self.name!r}",
                    items,
                    map_item,
                    self._reduced,
                    limit=self.max_parallel,
                    fan_in=self.fan_in,
                    key=self._key_of,
                    on_mapped=_end_map_phase,
                )
                .and_then(self._result)
                .tap(lambda _: _end_phase("reduce"))
            )

        return Suspend(begin)

    def _key_of(self, item: object) -> str:
        """Return the key of an item, as text that every encoding supports; file names may not be."""
        key = str(self.key(item))
        return key if key.isascii() else key.encode("utf-8", "backslashreplace").decode()

    def _mapped(self, key: str, item: object, retries: int) -> AnyEffect:
        """Return the effect that maps an item, and retries it `retries` times if it is a dead letter."""
        definition, parameter = self.map_step, self.parameter

        # A resume notices if the item of a `@step` has changed.
        step = durable(
            definition,
            self._attempts(item),
            partial(arguments_of, definition.name, {parameter: item}) if parameter else None,
        )

        def attempt(retry: int, before: int) -> AnyEffect:
            def again(letter: DeadLetter[Any]) -> AnyEffect:
                return attempt(retry + 1, letter.attempts)

            def failed(raised: object) -> AnyEffect:
                error, attempts = last_failure(raised)
                letter = DeadLetter(key, error, before + attempts)
                if self.keeps_dead_letters:
                    kept = pure(PartialResult.of_dead_letter(letter))
                    return AndThen(
                        _set_aside(letter), lambda _: again(letter) if retry < retries else kept
                    )
                is_retryable = definition.is_retryable(raised)
                stopped = fail(
                    ItemFailed(self.name, key, error, letter.attempts, is_retryable=is_retryable)
                )
                # If the run kept dead letters earlier, that settled the failures of these items.
                return Suspend(lambda scope: again(letter) if _was_set_aside(scope) else stopped)

            mapped = step.map(lambda value: PartialResult.of_item(key, value, retry=retry))
            return mapped.or_else(failed)

        return attempt(0, 0)

    def _attempts(self, item: object) -> AnyEffect:
        """Return the work on an item. Only running it calls the user's function."""
        executor, function = self.executor, self.map
        if executor is None:
            work = suspend(lambda: function(item))
        else:
            # Only the function and the item are sent. Losing the executor is not a failure of the item:
            # it stops the job, and a resume continues.
            work = suspend(lambda: executor.apply(function, item).recover(ExecutorLost, die))
        if self.retry is None:
            return work.map_err(_single_attempt)
        return work.retry(self.retry, when=lambda error: not self.map_step.may_have_happened(error))

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
        """Return the effect that makes the job's result of the last part; None if there are no items."""
        count, letters = (0, ()) if part is None else (part.count, part.dead_letters)
        if part is not None and part.value is not Nothing:
            return pure(JobResult(part.value.unwrap(), count, letters))
        step = durable(self.reduce_step, suspend(lambda: self.reduce([])))
        return step.map(lambda value: JobResult(value, count, letters))


def last_failure(raised: Any) -> tuple[Any, int]:
    """Return the error of the last attempt, and the number of attempts, with or without `retry`."""
    if isinstance(raised, RetryExhausted):
        exhausted = cast("RetryExhausted[Any]", raised)
        return exhausted.error, exhausted.attempts
    return raised, 1


def _single_attempt(error: object) -> object:
    """Wrap an error that is a RetryExhausted itself, so that `last_failure` returns it."""
    if isinstance(error, RetryExhausted):
        return RetryExhausted(cast("object", error), 1, 0.0)
    return error


@dataclass(frozen=True, slots=True)
class PartialResult:
    """The partial result of consecutive items.

    Attributes:
        value: the value of the items; nothing if all of them are dead letters.
        dead_letters: the items that failed, in order.
        count: the number of items.
        first, last: the keys of the first and the last item.
        digest: the key of a single item; for several, a digest of their keys.
        retry: the retry of dead letters that changed the value last; 0 for none.
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


def _requested_retries(scope: Scope) -> int:
    """Return how often `retry_dead_letters` was called for the run whose body this is."""
    flow = scope.flow
    return flow.run.recording.reopenings if isinstance(flow, DurableFlow) and not flow.path else 0


def _set_aside(letter: DeadLetter[Any]) -> AnyEffect:
    """Record that an item is a dead letter. This settles its failure: a resume does not retry it."""

    async def record(_: object, scope: Scope) -> object:
        return await scope.flow.decide(scope, _SET_ASIDE, lambda: {"attempts": letter.attempts})

    return Perform(record)


def _was_set_aside(scope: Scope) -> bool:
    """Return whether the item is recorded as a dead letter at this place."""
    flow = scope.flow
    return (
        isinstance(flow, DurableFlow) and flow.next_path(_SET_ASIDE) in flow.run.recording.decisions
    )
