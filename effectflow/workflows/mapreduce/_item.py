"""One item of a job: its attempts, and whether it is set aside after the last one has failed."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from effectflow.checkpoint.entries import ErrorRecord
from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.failures import read_error, write_error
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.recording import DEAD_LETTER, RecordedStep
from effectflow.checkpoint.step import durable
from effectflow.checkpoint.values import KnownTypes, Tree, encode_arguments
from effectflow.effects import TimedOut, fail
from effectflow.effects.interpreter import interpret
from effectflow.effects.nodes import AndThen, AnyEffect, Perform
from effectflow.effects.paths import step_path
from effectflow.effects.scope import Scope
from effectflow.effects.trails import Failed
from effectflow.workflows.mapreduce._job import Job
from effectflow.workflows.mapreduce._results import (
    DeadLetter,
    ItemFailed,
    ItemFailure,
    PartialResult,
    TooManyFailures,
)

if TYPE_CHECKING:
    from effectflow.checkpoint.run import Run


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
        self, job: Job, key: str, item: object, failures: FailureLimit, pace: Pace | None
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

    def begin(self, _env: object, scope: Scope) -> AnyEffect:
        """Return the effect that maps the item."""
        if self.job.keeps_dead_letters and isinstance(scope.flow, DurableFlow):
            # A dead letter has the item, so one that cannot be saved is rejected before it acts.
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
