"""`Schedule`: start runs at the times that a cron expression names."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import anyio

from effectflow.checkpoint import (
    NotSerializable,
    RunBusy,
    RunConflict,
    RunInfo,
    RunQuery,
    SaveFailed,
    StoreUnavailable,
    find_run,
)
from effectflow.checkpoint.store import find_in_pages, service_of
from effectflow.effects.arguments import check_text, check_type
from effectflow.effects.event_loop import strays_as_errors
from effectflow.effects.imports import needs
from effectflow.runs import Workflow
from effectflow.runs.run_ids import check_new_run_id
from effectflow.runs.start import check_priority
from effectflow.service.outage import Outage
from effectflow.service.pauses import pauses_in, unpaused_at

if TYPE_CHECKING:
    from cronsim import CronSim

    from effectflow.effects.clock import Clock
    from effectflow.service.client import Client

logger = logging.getLogger(__name__)

Input = TypeVar("Input")

Missed: TypeAlias = Literal["latest", "all", "skip"]

_LATE = timedelta(minutes=1)
"""The seconds after which a tick that was not started counts as missed."""

_AT_MOST = 30.0
"""The seconds of real time after which to check the clock again, because it may have been changed."""

_PAGE = 100

_SHIFT = timedelta(hours=2)
"""More than any time zone shifts its clocks."""


@dataclass(frozen=True)
class Schedule(Generic[Input]):
    """Starts a run of a workflow at the times that a cron expression names. Part of an `App`.

    The id of each run is made of the name and the time, such as `nightly@2026-11-22T02:30:00+00:00`, so a
    tick is started once, however many workers there are. Needs the package `cronsim`:
    `effectflow[service]`.

    When clocks are set back and an hour repeats, an expression with a fixed hour has one tick, and one
    with `*` or `*/2` as its hour has a tick in both hours. When clocks skip an hour, the ticks of an
    expression with that fixed hour come right after it.

    Attributes:
        workflow: the workflow.
        cron: five fields, "minute hour day month weekday", or six with the second in front.
        timezone: the time zone of the expression, such as "Europe/Berlin".
        input: the input of the runs, or a function that returns it, given the time of the tick: an aware
            `datetime` in the time zone.
        missed: what to do about ticks while no worker ran: start the `latest` one, `all`, or `skip` them.
            A tick counts as missed after one minute. What is left out is logged as a warning. Ticks from
            before the schedule was first used are never started.
        name: the name of the schedule; that of the workflow by default.
        priority: workers take runs with a higher one first. Any 32-bit integer.
        context: plain data to keep with the runs, for `run_context`.

    Example:
        >>> from effectflow import Do, workflow
        >>> @workflow
        ... def report(day: str) -> Do[object, Exception, None]:
        ...     yield from write_report(day)
        >>> nightly = Schedule(report, "30 2 * * *", input=lambda tick: str(tick.date()))
        >>> nightly.run_id(datetime(2026, 11, 22, 2, 30, tzinfo=UTC))
        'report@2026-11-22T02:30:00+00:00'
    """

    workflow: Workflow[Any, Any, Input, Any]
    cron: str
    timezone: str = "UTC"
    input: Input | Callable[[datetime], Input] | None = None
    missed: Missed = "latest"
    name: str = ""
    priority: int = 0
    context: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        check_type(
            self.workflow, Workflow, "a Schedule takes a workflow, such as that of @workflow"
        )
        check_text("the cron expression of a schedule", self.cron)
        check_text("the time zone of a schedule", self.timezone)
        check_text("the name of a schedule", self.name)
        if not self.name:
            object.__setattr__(self, "name", self.workflow.name)
        try:
            check_new_run_id(self.name)
        except ValueError as problem:
            raise ValueError(
                f"the name of a schedule begins the ids of its runs, and {problem}"
            ) from problem
        if self.missed not in ("latest", "all", "skip"):
            raise ValueError(f'missed must be "latest", "all" or "skip", not {self.missed!r}')
        check_priority(self.priority)
        # Check the time zone and the expression here, not in a worker.
        self._ticks(datetime(2000, 1, 1, tzinfo=UTC))
        if not callable(self.input):
            try:
                self.workflow.blueprint.check_types(self.input)
            except NotSerializable as error:
                raise ValueError(f"schedule {self.name!r} has no valid input: {error}") from error

    def run_id(self, tick: datetime) -> str:
        """Return the id of the run of a tick."""
        return f"{self.name}@{tick.astimezone(UTC).isoformat()}"

    def ticks_after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the ticks after a moment, in order, in UTC. There may be no more."""
        # In a repeated hour, the expression may yield a tick of the first pass again.
        return (tick for tick in self._ticks(moment) if tick > moment)

    def skipped(self, last: datetime, now: datetime) -> datetime | None:
        """Return the first tick after `last` that `due` leaves out at `now`, or None."""
        first = next(self.ticks_after(last), now)
        return first if first < next(self.due(last, now), now) else None

    def latest_tick(self, now: datetime) -> datetime | None:
        """Return the latest tick that is not after `now`, in UTC."""
        return next((tick for tick in self._ticks(now + _SHIFT, reverse=True) if tick <= now), None)

    def due(self, last: datetime, now: datetime) -> Iterator[datetime]:
        """Yield the ticks to start at `now`, in order, if those up to `last` were started or skipped."""
        begin = last if self.missed == "all" else max(last, now - _LATE)
        due = takewhile(lambda tick: tick <= now, self.ticks_after(begin))
        if self.missed != "latest" or begin == last:
            return due
        first = next(due, None)
        if first is not None:
            return chain((first,), due)
        latest = self.latest_tick(begin)
        return iter(() if latest is None or latest <= last else (latest,))

    def input_at(self, tick: datetime) -> Input:
        """Return the input for the run of a tick."""
        if callable(self.input):
            make = cast("Callable[[datetime], Input]", self.input)
            return make(tick.astimezone(self._zone))
        return cast("Input", self.input)

    def tick_of(self, run_id: str) -> datetime | None:
        """Return the tick of a run; None for a run that the schedule did not start."""
        try:
            tick = datetime.fromisoformat(run_id.removeprefix(f"{self.name}@"))
        except ValueError:
            return None
        return tick if tick.tzinfo is not None else None

    def _ticks(self, start: datetime, *, reverse: bool = False) -> Iterator[datetime]:
        CronSim, CronSimError = _cronsim()  # noqa: N806, classes
        try:
            ticks = CronSim(self.cron, start.astimezone(self._zone), reverse=reverse)
        except CronSimError as error:
            raise ValueError(
                f"schedule {self.name!r}: {self.cron!r} is not a cron expression: {error}"
            ) from error
        return (tick.astimezone(UTC) for tick in ticks)

    @property
    def _zone(self) -> ZoneInfo:
        try:
            return ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(
                f"schedule {self.name!r}: {self.timezone!r} is not a known time zone; on a system "
                "without a time zone database, pip install 'effectflow[service]'"
            ) from error


def _cronsim() -> tuple[type[CronSim], type[Exception]]:
    with needs("service"):
        from cronsim import CronSim, CronSimError
    return CronSim, CronSimError


async def keep_schedule(
    schedule: Schedule[Any], client: Client, clock: Clock, resting: set[str]
) -> None:
    """Submit the runs of a schedule when it is time, until cancelled.

    `resting` has its name while it only waits for the next tick.
    """
    outage = Outage(f"schedule {schedule.name!r}")
    last: datetime | None = None
    while True:
        try:
            with strays_as_errors():
                if last is None:
                    last = await _last_tick(schedule, client, clock.now())
                now = clock.now()
                # If the clock was set back, ticks are submitted again, which starts nothing.
                last = min(last, now)
                if (skipped := schedule.skipped(last, now)) is not None:
                    logger.warning(
                        "schedule %r: no worker started its ticks from %s on in time, and "
                        "missed=%r leaves them out",
                        *(schedule.name, skipped.isoformat(), schedule.missed),
                    )
                for tick in schedule.due(last, now):
                    await _submit(schedule, client, tick)
                    last = tick
                # What was skipped is not looked at again.
                last = max(last, now - _LATE)
            outage.end()
        except Exception as error:
            # An error here must never end the worker.
            await anyio.sleep(outage.begin(error))
            continue
        upcoming = next(schedule.ticks_after(now), None)
        ahead = math.inf if upcoming is None else (upcoming - clock.now()).total_seconds()
        with anyio.move_on_after(_AT_MOST):
            resting.add(schedule.name)
            await clock.sleep(ahead)
        resting.discard(schedule.name)


async def last_run(schedule: Schedule[Any], client: Client) -> RunInfo | None:
    """Return the run that a schedule has started last; None without any."""
    found = [
        info
        for name in schedule.workflow.blueprint.names
        for info in await client.find(
            RunQuery(workflow=name, prefix=f"{schedule.name}@", limit=_PAGE)
        )
        if schedule.tick_of(info.run_id) is not None
    ]
    return max(found, key=lambda info: info.place, default=None)


async def _last_tick(schedule: Schedule[Any], client: Client, now: datetime) -> datetime:
    """Return the last tick that was started, or left out by a pause; `now` if none was."""
    async with client.checkpoints.store as store:
        unpaused = await unpaused_at(service_of(store, "a schedule"), schedule.name)
        passed = [] if unpaused is None else [datetime.fromtimestamp(unpaused, UTC)]
        for workflow in schedule.workflow.blueprint.names:
            query = RunQuery(workflow=workflow, prefix=f"{schedule.name}@", limit=_PAGE)
            async with aclosing(find_in_pages(store, query)) as runs:
                async for info in runs:
                    tick = schedule.tick_of(info.run_id)
                    # A worker whose clock was ahead may have started ticks that are in the future.
                    if tick is not None and tick <= now:
                        passed.append(tick)
                        break
    return min(max(passed, default=now), now)


async def _submit(schedule: Schedule[Any], client: Client, tick: datetime) -> None:
    """Submit the run of a tick, unless another worker has, or the schedule is paused.

    A broken input is logged.
    """
    run_id = schedule.run_id(tick)
    async with client.checkpoints.store as store:
        pauses = await pauses_in(service_of(store, "a schedule"))
        if any((one.kind, one.name) == ("schedule", schedule.name) for one in pauses):
            logger.info("schedule %r is paused: run %r is left out", schedule.name, run_id)
            return
        if await find_run(store, run_id) is not None:
            return
    try:
        await client.submit(
            schedule.workflow,
            schedule.input_at(tick),
            run_id=run_id,
            priority=schedule.priority,
            context=schedule.context,
        )
    except RunConflict as error:
        # Another worker was faster, and its function returned a different input.
        logger.info("schedule %r: %s", schedule.name, error)
    except (StoreUnavailable, SaveFailed, RunBusy):
        raise
    except Exception:
        logger.exception("schedule %r: run %r was not started", schedule.name, run_id)
