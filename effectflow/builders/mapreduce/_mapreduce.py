"""`MapReduce`: map every item in a durable step, and reduce the values in a tree of durable rounds."""

from __future__ import annotations

import math
import typing
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import (
    Any,
    Generic,
    Literal,
    Never,
    NotRequired,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from effectflow.builders.checks import (
    InvalidDefinition,
    count_problems,
    effect_problems,
    function_problems,
    retry_problems,
    workflow_name_problems,
)
from effectflow.builders.mapreduce._job import Job, job_body
from effectflow.builders.mapreduce._results import ItemFailed, JobResult, TooManyFailures
from effectflow.builders.steps import function_of, name_of_function, step_of
from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.step import NOTHING_TO_RETRY, Step, StepDefinition
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import Effect, Executor, RetryExhausted, RetryPolicy, TimedOut, WorkerLost
from effectflow.effects.arguments import is_async, is_callable
from effectflow.effects.clock import Duration, in_seconds
from effectflow.effects.nodes import AnyEffect
from effectflow.effects.reduce import FAN_IN
from effectflow.effects.signatures import (
    effect_types,
    environment_type,
    input_type,
    never_fails,
    type_hints,
)
from effectflow.runs.blueprint import Blueprint, Wrapped
from effectflow.runs.workflow import Workflow

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

_SOURCE = "a function from the job's input to its items"
_EXECUTOR = "an executor, or a function from the environment to one"


class _Options(TypedDict, Generic[Env2, X]):
    """The parameters of a job that are the same in all cases."""

    limit: int
    retry: NotRequired[RetryPolicy | None]
    retryable: NotRequired[bool | Callable[[X | WorkerLost | TimedOut], bool] | None]
    timeout: NotRequired[Duration | None]
    per_second: NotRequired[float | None]
    fan_in: NotRequired[int]
    executor: NotRequired[Executor | Callable[[Env2], Executor] | None]
    version: NotRequired[str]


class MapReduce(Workflow[Env, E, Input, Out]):
    """A job that maps every item of a source and reduces the values to one, durably.

    Each item is a durable step, `map[key]/<name of map>`. Values are reduced in groups of `fan_in`, in
    the order of the items, and the results again in groups until one is left. Each group is a durable
    step as well, `reduce[round.group]/<name of reduce>`, and runs as soon as its values are complete. So
    memory is bounded, except for the keys, which are kept to detect duplicates.

    The classes of values and errors are read from the annotations of `map` and `reduce`; plain data
    needs none.

    Parameters:
        name: the job's name.
        items: returns the items for the job's input: a sync or async iterable, read lazily, or an effect
            that yields one. A resume reads it again and must find the same items in the same order. If it
            may not, make it a `@step` that yields a list, which is recorded. If items that
            had begun are missing, the resume fails with DefinitionChanged.
        map: returns the effect of one item. A `@step` records a digest of its item as well, and fails
            with StepInputChanged if a resume finds another item with the same key.
        reduce: returns the effect that combines a list of values; the grouping must not matter. Without
            any items it gets an empty list.
        key: returns the unique key of an item, as text. A completed item stays complete under its key:
            include in the key everything that may change, or make `map` a `@step`.
        limit: the number of items and groups that run at once; an int >= 1.
        on_item_failure: "fail" stops the job with ItemFailed; "dead_letter" sets the item aside. A
            defect stops the job in either case. A run continues with another choice only with
            `force=True`; with "fail", it then retries the items that were set aside.
        max_failures: with "dead_letter", how many items may fail: an int, or a float from 0.0 to 1.0 for
            a share of them. With more dead letters the job fails with TooManyFailures, as soon as that
            is known. For a share of a source without a length, that is after the last item.
        retry: the policy with which an item's step retries its failures, as in `@step(retry=)`: a resume
            continues the count. By default that of a `@step`, otherwise a single attempt.
        retryable: whether a failure is worth another attempt, by `retry` or by a resume, as in
            `@step(retryable=)`. By default that of a `@step`, otherwise True.
        timeout: the seconds, or a timedelta, that each attempt may take before it fails with TimedOut;
            by default that of a `@step`. Time in the queue of an executor counts.
        per_second: the number of attempts that may begin per second, on the clock of the run; a number
            > 0. No limit if None.
        fan_in: the number of values in a group; an int >= 2.
        executor: where `map` runs, or a function that returns that for the environment, so that a test
            may have another one; in this event loop if None. Steps, retries and dead letters are handled
            in this process.
        version: change it when a code change matters to runs in progress.

    It yields a JobResult. It fails with ItemFailed (unless items are set aside), with TooManyFailures (if
    `max_failures` is given), and with the errors of `items` and `reduce`. With "dead_letter", items must
    be values that can be saved: annotate the parameter of `map` with their class. Two items with the same
    key end it in a ValueError that names the key. Raises ValueError, with all problems, for a wrong
    definition.

    Example:
        >>> from dataclasses import dataclass
        >>> from effectflow import Checkpoints, pure
        >>> from effectflow.mapreduce import MapReduce
        >>> from effectflow.stores import MemoryStore
        >>> squares = MapReduce(
        ...     "squares",
        ...     items=range,
        ...     map=lambda number: pure(number * number),
        ...     reduce=lambda values: pure(sum(values)),
        ...     key=str,
        ...     limit=10,
        ... )
        >>> @dataclass
        ... class Env:
        ...     checkpoints: Checkpoints
        >>> env = Env(Checkpoints(MemoryStore()))
        >>> squares.start(4).run_sync(env)
        <Success: JobResult(value=14, items=4, dead_letters=())>
    """

    # Six cases: plain items or those of an effect; failed items stop the job, or are set aside, all of
    # them or up to a bound.
    @overload
    def __init__(
        self: MapReduce[Env2, ItemFailed[X] | E2 | E3, In, JobResult[A, Never, Never]],
        name: str,
        *,
        items: Callable[[In], Effect[Env2, E3, Iterable[Item] | AsyncIterable[Item]]],
        map: Callable[[Item], Effect[Env2, X, A]],
        reduce: Callable[[list[A]], Effect[Env2, E2, A]],
        key: Callable[[Item], object],
        on_item_failure: Literal["fail"] = "fail",
        **options: Unpack[_Options[Env2, X]],
    ) -> None: ...
    @overload
    def __init__(
        self: MapReduce[Env2, E2 | E3, In, JobResult[A, Item, X]],
        name: str,
        *,
        items: Callable[[In], Effect[Env2, E3, Iterable[Item] | AsyncIterable[Item]]],
        map: Callable[[Item], Effect[Env2, X, A]],
        reduce: Callable[[list[A]], Effect[Env2, E2, A]],
        key: Callable[[Item], object],
        on_item_failure: Literal["dead_letter"],
        max_failures: None = None,
        **options: Unpack[_Options[Env2, X]],
    ) -> None: ...
    @overload
    def __init__(
        self: MapReduce[Env2, TooManyFailures | E2 | E3, In, JobResult[A, Item, X]],
        name: str,
        *,
        items: Callable[[In], Effect[Env2, E3, Iterable[Item] | AsyncIterable[Item]]],
        map: Callable[[Item], Effect[Env2, X, A]],
        reduce: Callable[[list[A]], Effect[Env2, E2, A]],
        key: Callable[[Item], object],
        on_item_failure: Literal["dead_letter"],
        max_failures: float,
        **options: Unpack[_Options[Env2, X]],
    ) -> None: ...
    @overload
    def __init__(
        self: MapReduce[Env2, ItemFailed[X] | E2, In, JobResult[A, Never, Never]],
        name: str,
        *,
        items: Callable[[In], Iterable[Item] | AsyncIterable[Item]],
        map: Callable[[Item], Effect[Env2, X, A]],
        reduce: Callable[[list[A]], Effect[Env2, E2, A]],
        key: Callable[[Item], object],
        on_item_failure: Literal["fail"] = "fail",
        **options: Unpack[_Options[Env2, X]],
    ) -> None: ...
    @overload
    def __init__(
        self: MapReduce[Env2, E2, In, JobResult[A, Item, X]],
        name: str,
        *,
        items: Callable[[In], Iterable[Item] | AsyncIterable[Item]],
        map: Callable[[Item], Effect[Env2, X, A]],
        reduce: Callable[[list[A]], Effect[Env2, E2, A]],
        key: Callable[[Item], object],
        on_item_failure: Literal["dead_letter"],
        max_failures: None = None,
        **options: Unpack[_Options[Env2, X]],
    ) -> None: ...
    @overload
    def __init__(
        self: MapReduce[Env2, TooManyFailures | E2, In, JobResult[A, Item, X]],
        name: str,
        *,
        items: Callable[[In], Iterable[Item] | AsyncIterable[Item]],
        map: Callable[[Item], Effect[Env2, X, A]],
        reduce: Callable[[list[A]], Effect[Env2, E2, A]],
        key: Callable[[Item], object],
        on_item_failure: Literal["dead_letter"],
        max_failures: float,
        **options: Unpack[_Options[Env2, X]],
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        items: Callable[[Any], Any],
        map: Callable[[Any], AnyEffect],
        reduce: Callable[[list[Any]], AnyEffect],
        key: Callable[[Any], object],
        limit: int,
        on_item_failure: Literal["fail", "dead_letter"] = "fail",
        max_failures: float | None = None,
        retry: RetryPolicy | None = None,
        retryable: bool | Callable[[Any], bool] | None = None,
        timeout: Duration | None = None,
        per_second: float | None = None,
        fan_in: int = FAN_IN,
        executor: Executor | Callable[[Any], Executor] | None = None,
        version: str = "1",
    ) -> None:
        own = _definition_of(map, "map")
        seconds = own.timeout if timeout is None else in_seconds(timeout)
        policy = own.retry if retry is None else retry
        worth_it = own.retryable if retryable is None else retryable
        problems = [
            *workflow_name_problems(name),
            *_function_problems(items, map, reduce, key, executor),
            *count_problems(limit, "limit", least=1),
            *count_problems(fan_in, "fan_in", least=2),
            *(() if retry is None else retry_problems(retry, "the job")),
            *(_no_failures(map) if policy and seconds is None and executor is None else ()),
            *_attempt_problems(worth_it, seconds, per_second),
            *_failure_problems(on_item_failure, max_failures),
        ]
        if problems:
            raise InvalidDefinition(f"job {name!r}", problems)
        types = _types_of(items, function_of(map), function_of(reduce))
        map_step, mapping = step_of(map, own.name, types)
        reduce_name = _definition_of(reduce, "reduce").name
        reduce_step, reducing = step_of(reduce, reduce_name, types)
        job = Job(
            name=name,
            items=items,
            key=key,
            # The time limit is part of an attempt, so that each timeout is known as its failure.
            map_step=replace(map_step, retry=policy, retryable=worth_it, timeout=None),
            map=mapping,
            parameter=next(iter(map.parameters), "item") if isinstance(map, Step) else "",
            executor=_executor_function(executor),
            timeout=seconds,
            per_second=per_second,
            keeps_dead_letters=on_item_failure == "dead_letter",
            max_failures=max_failures,
            reduce_step=reduce_step,
            reduce=reducing,
            limit=limit,
            fan_in=fan_in,
        )
        super().__init__(_blueprint(job, version))


def _blueprint(job: Job, version: str) -> Blueprint:
    """Return the workflow that a job is."""
    choice = "dead_letter" if job.keeps_dead_letters else "fail"
    definition = Definition(
        job.name,
        version,
        "mapreduce",
        steps=(job.map_step.name, job.reduce_step.name),
        structure=(f"on_item_failure={choice}", f"fan_in={job.fan_in}"),
    )
    value = job.reduce_step.output
    return Blueprint(
        definition,
        body=partial(job_body, job),
        input_type=input_type(job.items),
        input_types=KnownTypes.of(input_type(job.items)),
        output_types=job.map_step.types,
        # Failed items may have errors that `map` does not declare.
        output_type=cast(Any, JobResult)[Any if value is None else value, Any, Any],
        environment_types=lambda: _environment_types(job),
        yields=Wrapped("a JobResult", "lambda result: ..."),
    )


def _environment_types(job: Job) -> list[object]:
    """Return the environments that the functions of a job declare.

    With an executor, `map` may run in the environment of a worker.
    """
    return [
        environment_type(job.items),
        environment_type(job.reduce),
        environment_type(job.map) if job.executor is None else input_type(job.executor),
    ]


def _definition_of(given: Any, role: str) -> StepDefinition:
    """Return the definition of a `@step`, or a new one with the name of the function."""
    if isinstance(given, Step):
        return given.definition
    return StepDefinition(name_of_function(given, role))


def _types_of(
    items: Callable[..., Any], map: Callable[..., Any], reduce: Callable[..., Any]
) -> KnownTypes:
    """Return the classes that may occur in the items, the values, the errors and the result of a job."""
    return KnownTypes.of(
        JobResult,
        ItemFailed,
        TooManyFailures,
        RetryExhausted,
        input_type(map),
        _listed_type(items),
        *effect_types(map),
        *effect_types(reduce),
    )


def _listed_type(items: Callable[..., Any]) -> object:
    """Return the annotation of what a source returns or yields, which has the class of its items."""
    annotation = type_hints(items).get("return")
    is_effect = typing.get_origin(annotation) is Effect
    return effect_types(items)[0] if is_effect else annotation


def _is_executor(given: object) -> bool:
    return hasattr(given, "apply")


def _executor_function(
    executor: Executor | Callable[[Any], Executor] | None,
) -> Callable[[Any], Executor] | None:
    """Return the function from the environment to the executor; None for this event loop."""
    if executor is not None and _is_executor(executor):
        fixed = cast("Executor", executor)
        return lambda _: fixed
    return cast("Callable[[Any], Executor] | None", executor)


def _function_problems(
    items: object, map: object, reduce: object, key: object, executor: object
) -> Iterator[str]:
    if not is_callable(items):
        yield f"`items` takes {_SOURCE}, not {items!r}"
    elif is_async(items):
        yield (
            f"`items` takes {_SOURCE}, not an async function: write an async generator, or return an "
            "effect that yields the items"
        )
    yield from effect_problems(function_of(map), "`map`", "a function from an item to an effect")
    yield from effect_problems(
        function_of(reduce), "`reduce`", "a function from a list to an effect"
    )
    yield from function_problems(key, "`key`", "a function from an item to its key")
    if executor is not None and not _is_executor(executor):
        yield from function_problems(executor, "`executor`", _EXECUTOR)


def _attempt_problems(
    retryable: object, timeout: float | None, per_second: float | None
) -> Iterator[str]:
    if retryable is not None and not isinstance(retryable, bool):
        yield from function_problems(
            retryable, "`retryable`", "a bool, or a function from an error to a bool"
        )
    if timeout is not None and not timeout >= 0:
        yield f"timeout must be 0 seconds or more, not {timeout}"
    if per_second is not None and not 0 < per_second < math.inf:
        yield f"per_second must be a number > 0, not {per_second!r}"


def _no_failures(map: Any) -> Iterator[str]:
    """Yield a problem if a job retries failures, and its items have none."""
    if never_fails(function_of(map)):
        yield f"`retry` has nothing to retry in `map`: {NOTHING_TO_RETRY}"


def _failure_problems(on_item_failure: str, max_failures: object) -> Iterator[str]:
    if on_item_failure not in ("fail", "dead_letter"):
        yield f'on_item_failure must be "fail" or "dead_letter", not {on_item_failure!r}'
    if max_failures is None:
        return
    is_count = type(max_failures) is int and max_failures >= 0
    is_share = type(max_failures) is float and 0 <= max_failures <= 1
    if not is_count and not is_share:
        yield f"max_failures must be an int >= 0 or a float from 0.0 to 1.0, not {max_failures!r}"
    if on_item_failure != "dead_letter":
        yield 'max_failures needs on_item_failure="dead_letter"'
