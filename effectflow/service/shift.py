"""One shift of a worker: take due runs, drive them, and stop in an orderly way."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import TaskGroup

from effectflow.checkpoint.changes import Wakeup, watching
from effectflow.checkpoint.lease import Owner, begin_claim, end_claim
from effectflow.checkpoint.stopping import StopRequest, stop_request
from effectflow.checkpoint.store import Claimed, DueRuns, Limit, Taken
from effectflow.checkpoint.suspension import Drain
from effectflow.effects.clock import Clock
from effectflow.effects.event_loop import (
    has_been_cancelled_natively,
    is_cancellation,
    strays_as_errors,
)
from effectflow.service.app import App
from effectflow.service.client import Client
from effectflow.service.outage import Outage
from effectflow.service.schedule import keep_schedule
from effectflow.workflows.driver import Service
from effectflow.workflows.recovery import recover_run

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 0.5
"""How often to look. The death of a process is no change in the store, but its runs should continue
within a second."""

_SECONDS_AFTER_NOTHING = 0.01
"""After a look that found nothing, all changes within this time cause only one more look."""

_MOST_AT_ONCE = 32
"""The most runs to claim in one request, so that other workers get some."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a worker works; the attributes are the parameters of `Worker`, in seconds."""

    concurrency: int
    limits: Mapping[str, Limit]
    grace: float
    suspend_after: float
    max_crashes: int
    clock: Clock


class Shift:
    """Takes due runs and drives them in a task group, from `begin` until `end`."""

    def __init__(
        self, app: App[Any], env: Any, client: Client, terms: Terms, tasks: TaskGroup
    ) -> None:
        self._app, self._env, self._client = app, env, client
        self._terms, self._tasks = terms, tasks
        self._service = Service(Drain(), terms.suspend_after, terms.max_crashes)
        self._stop = stop_request.get() or StopRequest()
        self._driving: set[anyio.CancelScope] = set()
        self._others: set[anyio.CancelScope] = set()
        self._owners: list[Owner] = []
        self._woken = Wakeup()
        self._taking = anyio.CancelScope(shield=True)
        self._grace = anyio.CancelScope()
        self._is_ending = anyio.Event()
        self._has_taken_last = anyio.Event()

    def begin(self) -> None:
        """Begin to take runs, and to start the runs of schedules."""
        self._tasks.start_soon(self._take_runs)
        for schedule in self._app.schedules:
            self._start(self._others, keep_schedule, schedule, self._client, self._terms.clock)

    async def end(self) -> None:
        """Take no more runs, give steps in progress some time to end, and interrupt the rest."""
        if self._stop.reason == StopRequest().reason:
            self._stop.reason = "the worker ended"
        _cancel(self._others)
        self._service.drain.begin()
        logger.info("%s: steps in progress may end, and no other begins", self._stop.reason)
        self._is_ending.set()
        self._woken.set()
        self._grace.deadline = anyio.current_time() + self._terms.grace
        with self._grace:
            await self._has_taken_last.wait()
            while self._driving:
                await self._woken.wait()
        if self._driving:
            logger.warning("the steps of %d runs did not end in time", len(self._driving))
        _cancel({self._taking, *self._driving})

    def hurry(self) -> None:
        """Give steps in progress no more time to end."""
        self._grace.cancel()

    def _start(
        self, scopes: set[anyio.CancelScope], work: Callable[..., Awaitable[object]], *args: object
    ) -> None:
        """Start a task that only this shift cancels: a cancelled worker drains before it ends."""
        scope = anyio.CancelScope(shield=True)
        scopes.add(scope)

        async def run() -> None:
            stop_request.set(self._stop)
            try:
                with scope:
                    await work(*args)
            except BaseException as raised:
                if not (is_cancellation(raised) and has_been_cancelled_natively()):
                    raise
                # A library cancelled this task, or a future that it awaited. The task group would
                # mistake that for its own cancellation, and end the worker.
                logger.exception("the worker has lost one of its tasks, %r", work)
            finally:
                scopes.discard(scope)
                self._woken.set()

        self._tasks.start_soon(run)

    async def _take_runs(self) -> None:
        store = self._app.checkpoints.store
        try:
            with self._taking:
                async with watching(store, None, self._woken.set):
                    await self._take_until_end()
        finally:
            for owner in self._owners:
                end_claim(owner, is_released=True)
            self._has_taken_last.set()

    async def _take_until_end(self) -> None:
        outage = Outage("a worker")
        while not self._is_ending.is_set():
            free = self._terms.concurrency - len(self._driving)
            if free == 0:
                await self._woken.wait()
                continue
            try:
                # During an outage, claim one run at a time: a request may claim runs and lose its answer.
                with strays_as_errors():
                    claimed = await self._claim(1 if outage.has_begun else free)
            except Exception as error:
                with anyio.move_on_after(outage.begin(error)):
                    await self._is_ending.wait()
                continue
            outage.end()
            if not claimed.runs:
                await self._wait(claimed.next_due_at)

    async def _claim(self, free: int) -> Claimed:
        """Claim due runs, and start to drive them."""
        most = min(free, _MOST_AT_ONCE)
        while len(self._owners) < most:
            self._owners.append(begin_claim())
        owners, checkpoints = (
            {str(owner): owner for owner in self._owners[:most]},
            self._app.checkpoints,
        )
        due = DueRuns(
            frozenset(self._app.workflows),
            [*owners],
            checkpoints.lease_length,
            self._terms.clock.now().timestamp(),
            self._terms.limits,
        )
        try:
            claimed = await checkpoints.store.claim_due(due)
        except BaseException:
            # They may still hold runs. A run whose owner is dead can be claimed at once.
            for owner in owners.values():
                self._owners.remove(owner)
                end_claim(owner, is_released=False)
            raise
        for taken in claimed.runs:
            owner = owners[taken.lease.owner]
            self._owners.remove(owner)
            self._start(self._driving, self._drive, taken, owner)
        return claimed

    async def _drive(self, taken: Taken, owner: Owner) -> None:
        workflow = self._app.workflows[taken.info.summary.workflow]
        try:
            with strays_as_errors():
                await recover_run(
                    workflow,
                    taken,
                    owner,
                    env=self._env,
                    checkpoints=self._app.checkpoints,
                    service=self._service,
                    clock=self._terms.clock,
                )
        except Exception:
            logger.exception("run %r was left by its worker", taken.lease.run_id)

    async def _wait(self, next_due_at: float | None) -> None:
        """Wait until there may be something to take."""
        clock = self._terms.clock
        await anyio.sleep(_SECONDS_AFTER_NOTHING)
        with anyio.move_on_after(_SECONDS_BETWEEN_LOOKS - _SECONDS_AFTER_NOTHING):
            if next_due_at is None:
                await self._woken.wait()
                return
            with clock.move_on_after(max(0.0, next_due_at - clock.now().timestamp())):
                await self._woken.wait()


def _cancel(scopes: set[anyio.CancelScope]) -> None:
    for scope in scopes:
        scope.cancel()
