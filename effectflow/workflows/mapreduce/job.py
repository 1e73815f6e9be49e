"""`MapReduce`: every item mapped in a durable step, and reduced in a tree of durable rounds."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, Never, TypeVar, cast, overload

from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.durable_step import StepDefinition
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.step import Step, effect_types
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import Effect, Executor, RetryExhausted, RetryPolicy
from effectflow.effects.reduction import FAN_IN
from effectflow.workflows.blueprint import Blueprint
from effectflow.workflows.checks import (
    count_problems,
    function_problems,
    refuse,
    workflow_name_problems,
)
from effectflow.workflows.linear import input_type
from effectflow.workflows.mapreduce.body import JobBody
from effectflow.workflows.mapreduce.mapping import MapPhase, last_failure
from effectflow.workflows.mapreduce.reducing import ReducePhase
from effectflow.workflows.mapreduce.results import ItemFailed, JobResult
from effectflow.workflows.mapreduce.retrying import has_dead_letters
from effectflow.workflows.workflow import Workflow

__all__ = ["MapReduce"]

Env = TypeVar("Env", bound=HasCheckpoints, contravariant=True)
E = TypeVar("E", covariant=True)
Input = TypeVar("Input", contravariant=True)
Out = TypeVar("Out", covariant=True)

Env2 = TypeVar("Env2", bound=HasCheckpoints)
In = TypeVar("In")
Item = TypeVar("Item")
A = TypeVar("A")
X = TypeVar("X")
E2 = TypeVar("E2")
E3 = TypeVar("E3")

AnyEffect = Effect[Any, Any, Any]


class MapReduce(Workflow[Env, E, Input, Out]):
    """A job: every item of a source is mapped, and what that gives is reduced to one value, durably.

    Each item is a durable step, `map[key]/<name of map>`. Values are reduced in groups of `fan_in`, in
    the order of the items, and again in groups until one is left: each group is a durable step too,
    `reduce[round.group]/<name of reduce>`. A group is reduced as soon as it is complete, so a job of any
    length runs in bounded memory, but for the keys, which are kept to tell two items apart.

    The classes of values and errors are read from the annotations of `map` and `reduce`; plain data
    needs none.

    Parameters:
        name: the job's name.
        items: gives the items for the job's input: a sync or async iterable, read lazily, or an effect
            that yields one. A resume reads it again, and must find the same items in the same order; if
            it may not, make it a `@step` that yields a list, which is recorded. Items that are done
            and gone fail the resume with StepInputChanged.
        map: makes the effect of one item. A `@step` records a digest of its item as well, and refuses
            another one of the same key with StepInputChanged.
        reduce: makes the effect that combines a list of values. How they are grouped must not matter to
            it. Of no items at all it is given an empty list.
        key: names an item, as text, differently for each. An item that is done stays done under its
            key: what may change of an item belongs in its key, unless `map` is a `@step`.
        max_parallel: how many items and groups are worked on at once, 1 or more.
        on_item_failure: "fail" stops the job with ItemFailed; "dead_letter" sets the item aside. A
            defect, which is no failure, stops the job in either case. A run goes on with another
            choice by `force=True`; with "fail", items that were set aside are then tried again.
        retry: when an item that failed is tried again before that; never if None.
        fan_in: how many values make a group, 2 or more.
        executor: where items are mapped; in this event loop if None. Steps, retries and dead letters
            stay with the run.
        version: change it when a change of the code matters to runs that are under way.

    It yields a JobResult. Fails with ItemFailed (unless items go to the dead letters), and with the
    errors of `items` and `reduce`. All that is wrong with it is in the ValueError that building it
    raises. Two items with one key end it in a ValueError that names the key.

    Example:
        >>> from dataclasses import dataclass
        >>> from effectflow import Checkpoints, MapReduce, pure
        >>> from effectflow.stores import MemoryStore
        >>> squares = MapReduce(
        ...     "squares",
        ...     items=range,
        ...     map=lambda number: pure(number * number),
        ...     reduce=lambda values: pure(sum(values)),
        ...     key=str,
        ...     max_parallel=10,
        ... )
        >>> @dataclass
        ... class App:
        ...     checkpoints: Checkpoints
        >>> app = App(Checkpoints(MemoryStore()))
        >>> squares.start(4).run_sync(app)
        <Success: JobResult(value=14, items=4, dead_letters=())>
    """

    # Four cases: items as they are, or by an effect; one that fails stops the job, or is set aside.
    @overload
    def __init__(
        self: MapReduce[Env2, ItemFailed[X] | E2 | E3, In, JobResult[A, Never]],
        name: str,
        *,
        items: Callable[[In], Effect[Env2, E3, Iterable[Item] | AsyncIterable[Item]]],
        map: Callable[[Item], Effect[Env2, X, A]],
        reduce: Callable[[list[A]], Effect[Env2, E2, A]],
        key: Callable[[Item], object],
        max_parallel: int,
        on_item_failure: Literal["fail"] = "fail",
        retry: RetryPolicy | None = None,
        fan_in: int = FAN_IN,
        executor: Executor | None = None,
        version: str = "1",
    ) -> None: ...
    @overload
    def __init__(
        self: MapReduce[Env2, E2 | E3, In, JobResult[A, X]],
        name: str,
        *,
        items: Callable[[In], Effect[Env2, E3, Iterable[Item] | AsyncIterable[Item]]],
        map: Callable[[Item], Effect[Env2, X, A]],
        reduce: Callable[[list[A]], Effect[Env2, E2, A]],
        key: Callable[[Item], object],
        max_parallel: int,
        on_item_failure: Literal["dead_letter"],
        retry: RetryPolicy | None = None,
        fan_in: int = FAN_IN,
        executor: Executor | None = None,
        version: str = "1",
    ) -> None: ...
    @overload
    def __init__(
        self: MapReduce[Env2, ItemFailed[X] | E2, In, JobResult[A, Never]],
        name: str,
        *,
        items: Callable[[In], Iterable[Item] | AsyncIterable[Item]],
        map: Callable[[Item], Effect[Env2, X, A]],
        reduce: Callable[[list[A]], Effect[Env2, E2, A]],
        key: Callable[[Item], object],
        max_parallel: int,
        on_item_failure: Literal["fail"] = "fail",
        retry: RetryPolicy | None = None,
        fan_in: int = FAN_IN,
        executor: Executor | None = None,
        version: str = "1",
    ) -> None: ...
    @overload
    def __init__(
        self: MapReduce[Env2, E2, In, JobResult[A, X]],
        name: str,
        *,
        items: Callable[[In], Iterable[Item] | AsyncIterable[Item]],
        map: Callable[[Item], Effect[Env2, X, A]],
        reduce: Callable[[list[A]], Effect[Env2, E2, A]],
        key: Callable[[Item], object],
        max_parallel: int,
        on_item_failure: Literal["dead_letter"],
        retry: RetryPolicy | None = None,
        fan_in: int = FAN_IN,
        executor: Executor | None = None,
        version: str = "1",
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        items: Callable[[Any], Any],
        map: Callable[[Any], AnyEffect],
        reduce: Callable[[list[Any]], AnyEffect],
        key: Callable[[Any], object],
        max_parallel: int,
        on_item_failure: Literal["fail", "dead_letter"] = "fail",
        retry: RetryPolicy | None = None,
        fan_in: int = FAN_IN,
        executor: Executor | None = None,
        version: str = "1",
    ) -> None:
        refuse(
            f"job {name!r}",
            [
                *workflow_name_problems(name),
                *_function_problems(items, map, reduce, key),
                *count_problems(max_parallel, "max_parallel", least=1),
                *count_problems(fan_in, "fan_in", least=2),
                *_failure_problems(on_item_failure, retry),
            ],
        )
        annotations = (*effect_types(_plain(map)), *effect_types(_plain(reduce)))
        types = KnownTypes.of(JobResult, RetryExhausted, *annotations)
        mapping = MapPhase(
            job=name,
            step=_of_last_attempt(_step_of(map, "map", types)),
            function=_plain(map),
            executor=executor,
            retry=retry,
            keeps_dead_letters=on_item_failure == "dead_letter",
            parameter=_parameter_of(map),
        )
        reducing = ReducePhase(_step_of(reduce, "reduce", types), _plain(reduce))
        steps = (mapping.step.name, reducing.step.name)
        structure = (f"on_item_failure={on_item_failure}", f"fan_in={fan_in}")
        definition = Definition(name, version, "mapreduce", steps, structure)
        super().__init__(
            Blueprint(
                define=lambda: definition,
                body=JobBody(name, items, key, mapping, reducing, max_parallel, fan_in),
                input_type=input_type(items),
                input_types=KnownTypes.of(input_type(items)),
                output_types=types,
            )
        )

    def retry_dead_letters(
        self, run_id: str, *, force: bool = False
    ) -> Effect[Env, E | CheckpointError, Out]:
        """Try the dead letters of a complete run again, and nothing else; yield the new result.

        The groups that an item joins by this are reduced again, so that the result is what it would
        have been if the item had succeeded at once. Without dead letters the result is the recorded
        one. A run that is not complete is taken up where it stood, as by `resume`; so a retry that was
        cut off, or failed, is taken up by either. Of a run that was not preserved nothing is left to
        retry.

        The source is read again, so a retry may fail. What it did until then stays done; the run is not
        complete until the retry is, but `start` yields the result that it had before.

        Parameters:
            run_id: the run.
            force: go on although the definition has changed.

        Fails as `resume` does.
        """
        return self._take_up(run_id, force=force, reopen=has_dead_letters)


def _function_problems(items: object, map: object, reduce: object, key: object) -> Iterator[str]:
    if not callable(items):
        yield f"`items` is given {items!r}: it takes a function from the job's input to its items"
    yield from function_problems(_plain(map), "`map`", "a function from an item to an effect")
    yield from function_problems(_plain(reduce), "`reduce`", "a function from a list to an effect")
    yield from function_problems(key, "`key`", "a function from an item to its name")


def _failure_problems(on_item_failure: object, retry: RetryPolicy | None) -> Iterator[str]:
    if on_item_failure not in ("fail", "dead_letter"):
        yield f'on_item_failure must be "fail" or "dead_letter", not {on_item_failure!r}'
    if retry is not None and not retry.is_bounded:
        yield (
            "the retry policy needs a bound: with_max_retries(n), with_max_elapsed(seconds), or "
            "without_bound() to try for ever"
        )


def _step_of(function: Any, role: str, types: KnownTypes) -> StepDefinition:
    """The step that a function is: its own if it is a `@step`, and otherwise one of its name."""
    if isinstance(function, Step):
        return replace(function.definition, types=types)
    name = getattr(function, "__name__", "<lambda>")
    return StepDefinition(role if name == "<lambda>" else name, types)


def _parameter_of(function: Any) -> str | None:
    """What a `@step` calls its item, which it records; None for any other function."""
    return next(iter(function.parameters), "item") if isinstance(function, Step) else None


def _of_last_attempt(step: StepDefinition) -> StepDefinition:
    """The step, asked about what its last attempt failed with, not about the end of its retries."""
    is_retryable = step.retryable
    if not callable(is_retryable):
        return step

    def of_last_attempt(raised: object) -> bool:
        return is_retryable(last_failure(raised)[0])

    return replace(step, retryable=of_last_attempt)


def _plain(function: Any) -> Any:
    """The function itself, where it was made a `@step`: the job gives it a step of its own."""
    return cast("Any", function.function) if isinstance(function, Step) else function
