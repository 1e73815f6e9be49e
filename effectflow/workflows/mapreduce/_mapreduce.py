"""`MapReduce`: map every item in a durable step, and reduce the values in a tree of durable rounds."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, Never, TypeVar, cast, overload

from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.step import Step, StepDefinition
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import Effect, Executor, RetryExhausted, RetryPolicy
from effectflow.effects.nodes import AnyEffect
from effectflow.effects.reduce import FAN_IN
from effectflow.effects.signatures import effect_types
from effectflow.workflows.checks import (
    InvalidDefinition,
    count_problems,
    function_problems,
    retry_problems,
    workflow_name_problems,
)
from effectflow.workflows.mapreduce._job import ItemFailed, Job, JobResult, last_failure
from effectflow.workflows.workflow import Blueprint, Workflow, input_type

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
            include whatever may change in the key, or make `map` a `@step`.
        max_parallel: the number of items and groups that run at once; an int >= 1.
        on_item_failure: "fail" stops the job with ItemFailed; "dead_letter" sets the item aside. A
            defect stops the job in either case. A run continues with another choice only with
            `force=True`; with "fail", it then retries the items that were set aside.
        retry: the policy of attempts within an item's step; a single attempt if None.
        fan_in: the number of values in a group; an int >= 2.
        executor: where `map` runs; in this event loop if None. Steps, retries and dead letters are
            handled in this process.
        version: change it when a code change matters to runs in progress.

    It yields a JobResult. It fails with ItemFailed (unless items are set aside), and with the errors of
    `items` and `reduce`. Two items with the same key end it in a ValueError that names the key. Raises
    ValueError, with all problems, for a wrong definition.

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

    # Four cases: plain items or those of an effect; failed items stop the job or are set aside.
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
        # The job makes its own steps of functions that are steps.
        mapping, reducing = _function_of(map), _function_of(reduce)
        problems = [
            *workflow_name_problems(name),
            *(() if callable(items) else [f"`items` takes {_SOURCE}, not {items!r}"]),
            *function_problems(mapping, "`map`", "a function from an item to an effect"),
            *function_problems(reducing, "`reduce`", "a function from a list to an effect"),
            *function_problems(key, "`key`", "a function from an item to its key"),
            *count_problems(max_parallel, "max_parallel", least=1),
            *count_problems(fan_in, "fan_in", least=2),
            *(() if retry is None else retry_problems(retry, "the job")),
        ]
        if on_item_failure not in ("fail", "dead_letter"):
            problems.append(
                f'on_item_failure must be "fail" or "dead_letter", not {on_item_failure!r}'
            )
        if problems:
            raise InvalidDefinition(f"job {name!r}", problems)
        mapped, reduced = effect_types(mapping), effect_types(reducing)
        types = KnownTypes.of(JobResult, RetryExhausted, *mapped, *reduced)
        job = Job(
            name=name,
            items=items,
            key=key,
            map_step=_of_last_attempt(_step_of(map, "map", types, mapped[0])),
            map=mapping,
            parameter=next(iter(map.parameters), "item") if isinstance(map, Step) else "",
            executor=executor,
            retry=retry,
            keeps_dead_letters=on_item_failure == "dead_letter",
            reduce_step=_step_of(reduce, "reduce", types, reduced[0]),
            reduce=reducing,
            max_parallel=max_parallel,
            fan_in=fan_in,
        )
        steps = (job.map_step.name, job.reduce_step.name)
        structure = (f"on_item_failure={on_item_failure}", f"fan_in={fan_in}")
        super().__init__(
            Blueprint(
                Definition(name, version, "mapreduce", steps, structure),
                body=job,
                input_type=input_type(items),
                input_types=KnownTypes.of(input_type(items)),
                output_types=types,
                # Failed items may have errors that `map` does not declare.
                output_type=_result_type(reduced[0]),
            )
        )

    def retry_dead_letters(
        self, run_id: str, *, force: bool = False
    ) -> Effect[Env, E | CheckpointError, Out]:
        """Retry the dead letters of a complete run, and nothing else; yield the new result.

        The groups that an item joins are reduced again, so the result is as if the item had succeeded at
        once. Without dead letters, this yields the recorded result. A run that is not complete continues
        where it stopped, as with `resume`; so either continues a retry that was interrupted or failed. A
        run that was not preserved cannot be retried.

        A retry reads the source again, so it may fail. Its completed steps stay complete. The run is not
        complete until the retry is, but meanwhile `start` yields the earlier result.

        Parameters:
            run_id: the run.
            force: continue although the definition has changed.

        Fails as `resume` does.
        """
        return self._take_up(run_id, force=force, reopen=self._phases_to_repeat)

    def _phases_to_repeat(self, result: JobResult[Any, Any]) -> tuple[str, ...]:
        """Return the operators of a complete run that a retry repeats, and the step of no values."""
        _, reduce_step = self.definition.steps
        return ("map", "reduce", reduce_step) if result.dead_letters else ()


def _result_type(value: Any) -> Any:
    return JobResult[Any if value is None else value, Any]


def _step_of(function: Any, role: str, types: KnownTypes, output: object) -> StepDefinition:
    """Return the definition of a `@step`, or a new one with the name of the function."""
    if isinstance(function, Step):
        return replace(function.definition, types=types)
    name = getattr(function, "__name__", "<lambda>")
    return StepDefinition(role if name == "<lambda>" else name, types, output=output)


def _of_last_attempt(step: StepDefinition) -> StepDefinition:
    """Return the step with its `retryable` applied to the error of the last attempt."""
    is_retryable = step.retryable
    if not callable(is_retryable):
        return step

    def of_last_attempt(raised: object) -> bool:
        return is_retryable(last_failure(raised)[0])

    return replace(step, retryable=of_last_attempt)


def _function_of(given: Any) -> Any:
    """Return the function of a `@step`, and any other function as it is."""
    return cast("Any", given.function) if isinstance(given, Step) else given
