"""The body of a job: read the items, map each of them, and reduce the values by groups."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Sized
from dataclasses import replace
from functools import partial
from typing import Any, cast

from returns.maybe import Nothing, Some

from effectflow.checkpoint.errors import StepInputChanged
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.step import StepDefinition, durable, save_now
from effectflow.checkpoint.values import digest_of
from effectflow.effects import Effect, pure, suspend
from effectflow.effects.nodes import AndThen, AnyEffect, Named, Suspend
from effectflow.effects.paths import child_path
from effectflow.effects.reduce import reduction_of
from effectflow.effects.scope import Scope
from effectflow.workflows.mapreduce._item import FailureLimit, ItemWork, Pace
from effectflow.workflows.mapreduce._job import Job
from effectflow.workflows.mapreduce._results import JobResult, PartialResult

_MAPPED = StepDefinition("mapped", output=int)
"""The step that ends the map phase: once it is complete, the items of the job are known."""


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

    def begin(_env: object, scope: Scope) -> AnyEffect:
        check = _refuse_new_items(scope)
        total = len(items) if isinstance(items, Sized) else None
        failures = FailureLimit(job.name, job.max_failures, total)
        pace = None if job.max_per_second is None else Pace(1 / job.max_per_second)

        def map_item(item: Any) -> AnyEffect:
            key = job.key_of(item)
            check(key)
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
                limit=job.max_parallel,
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
    step = durable(definition, suspend(lambda: job.reduce(values)), lambda _: arguments)
    return step.map(lambda value: replace(whole, value=Some(value)))


def _result(job: Job, part: PartialResult | None) -> AnyEffect:
    """Return the effect that makes the job's result from the last part; None without items."""
    count, letters = (0, ()) if part is None else (part.count, part.dead_letters)
    if part is not None and part.value is not Nothing:
        return pure(JobResult(part.value.unwrap(), count, letters))
    step = durable(job.reduce_step, suspend(lambda: job.reduce([])))
    return step.map(lambda value: JobResult(value, count, letters))


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

    If every step is durable before the next one begins, this saves nothing.
    """

    def end(_env: object, scope: Scope) -> AnyEffect:
        flow = scope.flow
        if not isinstance(flow, DurableFlow) or flow.run.checkpoints.policy.every_steps == 1:
            return pure(None)
        return save_now(f"the {phase} phase has ended")

    return Suspend(end)
