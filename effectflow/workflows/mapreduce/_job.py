"""The work of a job: read its items, map each of them, and reduce their values group by group."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from returns.maybe import Nothing, Some

from effectflow.checkpoint.step import StepDefinition, arguments_of, durable
from effectflow.checkpoint.values import digest_of
from effectflow.effects import (
    Effect,
    Executor,
    ExecutorLost,
    RetryExhausted,
    RetryPolicy,
    die,
    fail,
    pure,
    suspend,
)
from effectflow.effects.nodes import AndThen, Named, Suspend
from effectflow.effects.reduce import reduction_of
from effectflow.effects.scope import Scope
from effectflow.workflows.mapreduce._records import (
    MAPPED,
    refuse_new_items,
    requested_retries,
    set_aside,
    was_set_aside,
)
from effectflow.workflows.mapreduce._results import DeadLetter, ItemFailed, JobResult, PartialResult

AnyEffect = Effect[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """The body of a job, from its input to the effect that yields its result.

    Attributes:
        name: the job's name.
        items: returns the items for an input, or an effect that yields them.
        key: returns the key of an item.
        mapping, reducing: the work on items, and on groups.
        max_parallel: the number of items and groups that run at once.
        fan_in: the number of values in a group.
    """

    name: str
    items: Callable[[Any], Any]
    key: Callable[[Any], object]
    mapping: MapPhase
    reducing: ReducePhase
    max_parallel: int
    fan_in: int

    def __call__(self, input: Any) -> AnyEffect:
        def begin(scope: Scope) -> AnyEffect:
            retries = requested_retries(scope)
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
        return Suspend(lambda scope: self._map_and_reduce(items, retries, refuse_new_items(scope)))

    def _map_and_reduce(
        self, items: Iterable[Any], retries: int, check: Callable[[str], None]
    ) -> AnyEffect:
        def map_item(item: Any) -> AnyEffect:
            key = self._key_of(item)
            check(key)
            return self.mapping.part_of(key, item, retries)

        def end_map_phase(count: int) -> AnyEffect:
            # A step, so that a resume must find the same number of items.
            arguments = (digest_of(count), f"({count} items)")
            return durable(_MAPPED, pure(count), lambda: arguments)

        return reduction_of(
            f"job {self.name!r}",
            items,
            map_item,
            self.reducing.part_of,
            limit=self.max_parallel,
            fan_in=self.fan_in,
            key=self._key_of,
            on_mapped=end_map_phase,
        ).and_then(self.reducing.result_of)

    def _key_of(self, item: object) -> str:
        """Return the key of an item, as text that every encoding supports; file names may not be."""
        key = str(self.key(item))
        return key if key.isascii() else key.encode("utf-8", "backslashreplace").decode()


_MAPPED = StepDefinition(MAPPED)


@dataclass(frozen=True, slots=True)
class MapPhase:
    """The map phase: each item is a durable step, with its retries and its dead letter.

    Attributes:
        job: the job's name.
        step: the durable step of each item.
        function: the user's function.
        executor: where it runs; in this event loop if None.
        retry: the policy of attempts within the step; a single attempt if None.
        keeps_dead_letters: whether a failed item is set aside; otherwise it stops the job.
        parameter: the name under which the item is recorded; None if it is not.
    """

    job: str
    step: StepDefinition
    function: Callable[[Any], AnyEffect]
    executor: Executor | None
    retry: RetryPolicy | None
    keeps_dead_letters: bool
    parameter: str | None

    def part_of(self, key: str, item: object, retries: int) -> AnyEffect:
        """Return the effect that maps an item, and retries it `retries` times if it is a dead letter."""
        step = durable(self.step, self._work(item), self._describe(item))

        def attempt(retry: int, before: int) -> AnyEffect:
            def failed(raised: object) -> AnyEffect:
                error, attempts = last_failure(raised)
                letter = DeadLetter(key, error, before + attempts)
                is_retryable = self.step.is_retryable(raised)
                if self.keeps_dead_letters:
                    return AndThen(set_aside(letter), lambda _: kept(retry, letter))
                return Suspend(partial(stopped, retry, letter, is_retryable))

            return step.map(lambda value: PartialResult.of_item(key, value, retry=retry)).or_else(
                failed
            )

        def kept(retry: int, letter: DeadLetter[Any]) -> AnyEffect:
            if retry < retries:
                return attempt(retry + 1, letter.attempts)
            return pure(PartialResult.of_dead_letter(letter))

        def stopped(
            retry: int, letter: DeadLetter[Any], is_retryable: bool, scope: Scope
        ) -> AnyEffect:
            if was_set_aside(scope):
                # The run kept dead letters earlier, which settled the failures of these items.
                return attempt(retry + 1, letter.attempts)
            error, attempts = letter.error, letter.attempts
            return fail(ItemFailed(self.job, key, error, attempts, is_retryable=is_retryable))

        return attempt(0, 0)

    def _describe(self, item: object) -> Callable[[], tuple[str, str]] | None:
        """Return the arguments that a `@step` records, so that a resume notices a changed item."""
        parameter = self.parameter
        if parameter is None:
            return None
        return lambda: arguments_of(self.step.name, {parameter: item})

    def _work(self, item: object) -> AnyEffect:
        """Return the work on an item. Only running it calls the user's function."""
        executor, function = self.executor, self.function
        if executor is None:
            work = suspend(lambda: function(item))
        else:
            # Only the function and the item are sent. Losing the executor is not a failure of the item:
            # it stops the job, and a resume continues.
            work = suspend(lambda: executor.apply(function, item).recover(ExecutorLost, die))
        return work.map_err(_single_attempt) if self.retry is None else work.retry(self.retry)


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
class ReducePhase:
    """The reduce phase: each group of parts becomes one part, in a durable step.

    Attributes:
        step: the durable step of each group.
        function: the user's function.
    """

    step: StepDefinition
    function: Callable[[list[Any]], AnyEffect]

    def part_of(self, parts: list[PartialResult]) -> AnyEffect:
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
        definition = self.step
        if whole.retry > 0:
            # A dead letter has joined the group, so it is reduced again, as another step.
            definition = replace(definition, name=f"{definition.name} after retry {whole.retry}")
        step = durable(definition, self._work(values), lambda: whole.arguments)
        return step.map(lambda value: replace(whole, value=Some(value)))

    def result_of(self, part: PartialResult | None) -> AnyEffect:
        """Return the effect that makes the job's result of the last part; None if there are no items."""
        count, letters = (0, ()) if part is None else (part.count, part.dead_letters)
        if part is not None and part.value is not Nothing:
            return pure(JobResult(part.value.unwrap(), count, letters))
        step = durable(self.step, self._work([]))
        return step.map(lambda value: JobResult(value, count, letters))

    def _work(self, values: list[Any]) -> AnyEffect:
        return suspend(lambda: self.function(values))
