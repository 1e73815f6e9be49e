"""`Worker`: drive the runs of a store that are due, in any asyncio or trio program."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import uniform
from typing import Any, Generic, Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from effectflow.checkpoint.lease import Owner, begin_claim, end_claim
from effectflow.checkpoint.notifications import Wakeup, watching
from effectflow.checkpoint.observers import Observer
from effectflow.checkpoint.stopping import StopRequest, stop_request
from effectflow.checkpoint.store import Claimed, DueRuns, Queue, Taken, service_of
from effectflow.effects import RetryPolicy
from effectflow.effects.arguments import check_count, check_type
from effectflow.effects.clock import Clock, Duration, SystemClock, in_seconds, waiting_time
from effectflow.effects.event_loop import (
    has_been_cancelled_natively,
    is_cancellation,
    shielded,
    strays_as_errors,
)
from effectflow.runs.driven_runs import DrivenRuns
from effectflow.runs.driver import Service
from effectflow.runs.recovery import LEAST_CRASHES, recover_run
from effectflow.service.app import App
from effectflow.service.changes import end_following
from effectflow.service.client import Client
from effectflow.service.health import Health, overdue_runs
from effectflow.service.heartbeat import keep_heartbeat
from effectflow.service.outage import Outage
from effectflow.service.pauses import Pause, paused_names, pauses_in
from effectflow.service.retention import keep_retention
from effectflow.service.schedule import keep_schedule

logger = logging.getLogger(__name__)

Env = TypeVar("Env")

_SECONDS_BETWEEN_LOOKS = 0.5
"""How often to look. No change tells that a process died, but others should soon continue its runs."""

_PAUSES = RetryPolicy.exponential(0.01).with_max_delay(0.16).with_full_jitter()
"""After a look that found less than was wanted, all changes within this time (seconds) cause only one
more look. It grows while changes make a worker look and others are faster."""

_MOST_SECONDS_LATE = 0.05
"""A worker that has left runs of other versions is late by up to this, so as not to be always first."""

_SECONDS_OF_LEAVING = 120.0
"""How long after the last such run it does so."""

_SECONDS_BETWEEN_CHECKS = 0.001

_MOST_AT_ONCE = 32
"""The most runs to claim in one request, so that other workers get some."""


class Worker(Generic[Env]):
    """Drives the runs of an `App`: an async context manager for any asyncio or trio program.

    While it is open, it takes runs that were submitted, are due, received a message, or whose process
    died, and renews their leases. If a run only waits, for longer than some seconds, the worker suspends
    it: the run needs no memory until any worker continues it. A failed run stays failed until someone
    resumes it. A run with which two processes in a row have died is driven alone until it gets further,
    and fails after `max_crashes` of them. A run that does not fit this program is left for other workers,
    and shown as blocked.

    At the end of the context, the worker takes no more runs, and nobody in this event loop follows the
    changes of runs of its store any longer. Steps in progress may end within `grace`. Then the worker
    interrupts the rest and releases all leases, so that other workers continue the runs at once.

    The worker logs errors of the store, and tries again.

    Attributes:
        app: the App whose runs it drives.
        client: a client of the same checkpoints, with the observers of the worker.

    Example:
        >>> from dataclasses import dataclass
        >>> import anyio
        >>> from effectflow import App, Checkpoints, Do, pure, workflow
        >>> from effectflow.stores import MemoryStore
        >>> @dataclass(frozen=True)
        ... class Shop:
        ...     checkpoints: Checkpoints
        >>> @workflow
        ... def greet(name: str) -> Do[Shop, str, str]:
        ...     return (yield from pure(f"Hello {name}"))
        >>> app = App([greet], environment=Shop, checkpoints=Checkpoints(MemoryStore()))
        >>> async def main():
        ...     async with Worker(app) as worker:
        ...         handle = await worker.client.submit(greet, "Ada")
        ...         print(await handle.result())
        >>> anyio.run(main)
        <Success: Hello Ada>
    """

    def __init__(
        self,
        app: App[Env],
        *,
        limit: int = 100,
        versions: Mapping[str, Collection[str]] | None = None,
        grace: Duration = 10.0,
        suspend_after: Duration = 5.0,
        max_crashes: int = 5,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
    ) -> None:
        """Create a worker.

        Parameters:
            limit: the number of runs that this worker drives at the same time. Limits across all workers
                are those of the `queues` of the App.
            versions: the versions of runs to take, by the name of the workflow; by default, that of the
                workflow, and those for which it has a migration. Other runs are left to other workers, so
                old and new code run side by side: see docs/operations.md.
            grace: the seconds, or the `timedelta`, that steps in progress may take at the end. A thread
                cannot be interrupted: the worker waits for a step in a thread, however long it takes.
            suspend_after: suspend a run once all its fibers wait for more than this many seconds.
            max_crashes: fail a run after this many processes in a row have died with it, at least 3. The
                first two may have died of another run. From then on, this run is driven alone.
            observers: receive the events of the runs that this worker drives, in addition to those of the
                checkpoints.
            clock: tells the time; tests pass a `TestClock`. Runs are due by this clock.

        Raises ValueError for a version of a workflow that the app does not have, and for a number that is
        too small; StoreUnavailable for a store that only keeps journals.
        """
        check_type(
            app,
            App,
            "a Worker takes an App, such as App([greet], environment=..., checkpoints=...)",
        )
        check_count("limit", limit, least=1)
        check_count("max_crashes", max_crashes, least=LEAST_CRASHES)
        _check_versions(app, versions or {})
        service_of(app.checkpoints.store, "a worker")
        self.app = app
        self._terms = _Terms(
            limit=limit,
            versions=dict(versions or {}),
            grace=waiting_time("grace", grace),
            suspend_after=waiting_time("suspend_after", suspend_after),
            max_crashes=max_crashes,
            clock=clock or SystemClock(),
        )
        known = app.checkpoints
        observed = replace(known, observers=(*known.observers, *observers)) if observers else known
        self.client: Client = Client(observed, clock=self._terms.clock)
        self._serving: AbstractAsyncContextManager[None] | None = None
        self._shift: _Shift | None = None

    async def __aenter__(self) -> Self:
        if self._serving is not None:
            raise RuntimeError("this worker is open already: create one for each `async with`")
        self._serving = self._serve()
        try:
            await self._serving.__aenter__()
        except BaseException:
            # Nothing is open now, so the caller can try again.
            self._serving = None
            raise
        return self

    async def __aexit__(self, *raised: Any) -> None:
        assert self._serving is not None
        serving, self._serving = self._serving, None
        await serving.__aexit__(*raised)

    async def idle(self) -> None:
        """Wait until this worker has nothing to do before its clock advances or something arrives.

        Then no run is due, and the runs that it drives are suspended or wait. Use it in tests, before
        `TestClock.advance` and after it. A step in progress that waits for something else than the clock
        of the worker, or for that clock by itself, keeps it busy.

        Raises RuntimeError if the worker is not open.
        """
        if self._shift is None:
            raise RuntimeError("this worker is not open: `async with worker:` opens it")
        await self._shift.idle()

    async def health(self, *, overdue_after: Duration = 60.0, timeout: Duration = 3.0) -> Health:  # noqa: ASYNC109
        """Return how the worker is, also before it is open and after its end.

        Parameters:
            overdue_after: count the runs that have been due for longer than this many seconds, or this
                `timedelta`.
            timeout: the seconds, or the `timedelta`, that the store may take to answer.
        """
        shift, terms = self._shift, self._terms
        before = terms.clock.now().timestamp() - in_seconds(overdue_after)
        overdue, error = 0, ""
        try:
            with anyio.fail_after(in_seconds(timeout)):
                overdue = await overdue_runs(
                    self.client.checkpoints, self.app.workflows, before=before
                )
        except TimeoutError:
            error = f"no answer within {in_seconds(timeout):g} s"
        except Exception as raised:
            error = repr(raised)
        return Health(
            is_alive=shift is not None and shift.is_taking,
            store_error=error,
            driven=0 if shift is None else shift.driven,
            limit=terms.limit,
            overdue=overdue,
        )

    def hurry(self, reason: str = "hurry()") -> None:
        """Interrupt steps in progress at once when the context ends, instead of after `grace`.

        Use it for a second signal from an impatient user. Call it in the event loop, also while the
        worker ends.

        Parameters:
            reason: why, for the log, such as "SIGTERM again".
        """
        if self._shift is not None:
            self._shift.hurry(reason)

    @asynccontextmanager
    async def _serve(self) -> AsyncGenerator[None]:
        raised: BaseException | None = None
        async with (
            self.app.checkpoints.store,
            self.app.opened_environment(self.client.checkpoints) as env,
            anyio.create_task_group() as tasks,
        ):
            self._shift = shift = _Shift(self.app, env, self.client, self._terms, tasks)
            shift.begin()
            try:
                yield
            except BaseException as error:
                if is_cancellation(error):
                    raise
                # Hidden from the task group, which would wrap it.
                raised = error
            finally:
                await shielded(shift.end())
        if raised is not None:
            raise raised


@dataclass(frozen=True, slots=True)
class _Terms:
    """How a worker works; the attributes are the parameters of `Worker`, in seconds."""

    limit: int
    versions: Mapping[str, Collection[str]]
    grace: float
    suspend_after: float
    max_crashes: int
    clock: Clock


class _Shift:
    """Takes due runs and drives them in a task group, from `begin` until `end`."""

    def __init__(
        self, app: App[Any], env: Any, client: Client, terms: _Terms, tasks: TaskGroup
    ) -> None:
        self._app, self._env, self._client = app, env, client
        self._store = service_of(app.checkpoints.store, "a worker")
        self._terms, self._tasks = terms, tasks
        self._stop = stop_request.get() or StopRequest()
        self._driving: set[anyio.CancelScope] = set()
        self._others: set[anyio.CancelScope] = set()
        self._resting: set[str] = set()
        self._looks = self._idle_look = self._taken = self._idlers = 0
        self._owners: list[Owner] = []
        self._queues = _queues_of(app)
        self._pauses: list[Pause] = []
        self._pauses_read_at = -math.inf
        self._woken = Wakeup()
        self._runs = DrivenRuns(terms.grace, self._woken.set, partial(self._start, self._others))
        self._service = Service(self._runs, terms.suspend_after, terms.max_crashes, terms.versions)
        self._taking = anyio.CancelScope(shield=True)
        self._grace = anyio.CancelScope()
        self._hurry = ""
        self._left_at = -math.inf
        self._is_ending = anyio.Event()
        self._has_taken_last = anyio.Event()

    def begin(self) -> None:
        """Begin to take runs, to start the runs of schedules, and to delete old runs."""
        self._tasks.start_soon(self._take_runs)
        terms = self._terms
        living = self._store, self._app, terms.limit, terms.versions, terms.clock
        self._start(self._others, keep_heartbeat, *living)
        for schedule in self._app.schedules:
            keeping = schedule, self._client, self._terms.clock, self._resting
            self._start(self._others, keep_schedule, *keeping)
        if self._app.retention:
            keeping = self._app.retention, self._client, self._terms.clock, self._resting
            self._start(self._others, keep_retention, *keeping)

    async def end(self) -> None:
        """Take no more runs, give steps in progress some time to end, and interrupt the rest."""
        if self._stop.reason == StopRequest().reason:
            self._stop.reason = "the worker ended"
        _cancel(self._others)
        end_following(self._store)
        self._runs.end()
        logger.info("%s: steps in progress may end, and no other begins", self._stop.reason)
        self._is_ending.set()
        self._woken.set()
        self._grace.deadline = anyio.current_time() + self._terms.grace
        with self._grace:
            await self._has_taken_last.wait()
            while self._driving:
                await self._woken.wait()
        if self._driving and self._hurry:
            logger.info("%s: steps in progress are interrupted", self._hurry)
        elif self._driving:
            logger.warning("the steps of %d runs did not end in time", len(self._driving))
        _cancel({self._taking, *self._driving})

    async def idle(self) -> None:
        """Wait until all rest, and neither messages nor due runs change that."""
        self._idlers += 1
        try:
            before: tuple[int, int] | None = None
            while (now := (self._taken, self._runs.turns)) != before:
                before, looks = now, self._looks
                self._runs.look()
                self._woken.set()
                while not (self._is_resting and (self._idle_look > looks or not self._may_take)):
                    if self._is_ending.is_set():
                        return
                    await anyio.sleep(_SECONDS_BETWEEN_CHECKS)
        finally:
            self._idlers -= 1

    @property
    def is_taking(self) -> bool:
        """Whether it still takes runs."""
        return not (self._is_ending.is_set() or self._has_taken_last.is_set())

    @property
    def driven(self) -> int:
        """The number of runs that it drives."""
        return len(self._driving)

    @property
    def _is_resting(self) -> bool:
        runs, others = len(self._driving), len(self._app.schedules) + bool(self._app.retention)
        is_driving = not self._runs.is_resting or self._runs.members < runs
        return not is_driving and len(self._resting) == others

    def hurry(self, reason: str) -> None:
        """Give steps in progress no more time to end."""
        self._hurry = reason
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
        try:
            with self._taking:
                async with watching(self._store, None, self._woken.set):
                    await self._take_until_end()
        finally:
            for owner in self._owners:
                end_claim(owner, is_released=True)
            self._has_taken_last.set()

    async def _take_until_end(self) -> None:
        outage, pauses = Outage("a worker"), _PAUSES.delays()
        while not self._is_ending.is_set():
            if not self._may_take:
                await self._woken.wait()
                continue
            if anyio.current_time() < self._left_at + _SECONDS_OF_LEAVING:
                await anyio.sleep(uniform(0.0, _MOST_SECONDS_LATE))
            free = self._terms.limit - len(self._driving)
            try:
                # During an outage, claim one run at a time: a request may claim runs and lose its answer.
                wanted = 1 if outage.has_begun else min(free, _MOST_AT_ONCE)
                with strays_as_errors():
                    claimed = await self._claim(wanted)
            except Exception as error:
                with anyio.move_on_after(outage.begin(error)):
                    await self._is_ending.wait()
                continue
            outage.end()
            if claimed.runs:
                pauses = _PAUSES.delays()
            if len(claimed.runs) < wanted:
                await anyio.sleep(0 if self._idlers else next(pauses))
                if not await self._changed(claimed.next_due_at):
                    pauses = _PAUSES.delays()

    @property
    def _may_take(self) -> bool:
        return len(self._driving) < self._terms.limit and not self._runs.is_closed

    async def _claim(self, most: int) -> Claimed:
        """Claim at most this many due runs, and start to drive them."""
        self._looks += 1
        look = self._looks
        await self._read_pauses()
        while len(self._owners) < most:
            self._owners.append(begin_claim())
        owners = {str(owner): owner for owner in self._owners[:most]}
        due = DueRuns(
            self._unpaused_workflows(),
            [*owners],
            self._client.checkpoints.lease_length,
            self._terms.clock.now().timestamp(),
            self._limits(),
        )
        try:
            claimed = await self._store.claim_due(due)
        except BaseException:
            # They may still hold runs. A run whose owner is dead can be claimed at once.
            for owner in owners.values():
                self._owners.remove(owner)
                end_claim(owner, is_released=False)
            raise
        self._taken += len(claimed.runs)
        if not claimed.runs:
            self._idle_look = look
        for taken in claimed.runs:
            owner = owners[taken.lease.owner]
            self._owners.remove(owner)
            self._start(self._driving, self._drive, taken, owner)
        return claimed

    async def _read_pauses(self) -> None:
        now = anyio.current_time()
        if now - self._pauses_read_at < _SECONDS_BETWEEN_LOOKS:
            return
        pauses = await pauses_in(self._store)
        self._pauses_read_at = now
        for pause in pauses:
            if pause not in self._pauses:
                logger.info("%s %r is paused by %s", pause.kind, pause.name, pause.by)
        self._pauses = pauses

    def _unpaused_workflows(self) -> frozenset[str]:
        paused = paused_names("workflow", self._pauses)
        return frozenset(
            name
            for name, one in self._app.recorded.items()
            if paused.isdisjoint(one.blueprint.names)
        )

    def _limits(self) -> dict[str, Queue]:
        """Return the queues, those that are paused with the limit 0."""
        paused = paused_names("queue", self._pauses)
        for name, one in self._app.recorded.items():
            if not paused.isdisjoint(one.blueprint.names):
                paused.add(name)
        return {**self._queues, **{name: Queue(name, limit=0) for name in paused}}

    async def _drive(self, taken: Taken, owner: Owner) -> None:
        workflow = self._app.recorded[taken.info.summary.workflow]
        try:
            with strays_as_errors():
                is_taken = await recover_run(
                    workflow,
                    taken,
                    owner,
                    env=self._env,
                    checkpoints=self._client.checkpoints,
                    service=self._service,
                    clock=self._terms.clock,
                )
            if not is_taken:
                self._left_at = anyio.current_time()
        except Exception:
            logger.exception("run %r was left by its worker", taken.lease.run_id)

    async def _changed(self, next_due_at: float | None) -> bool:
        """Wait until there may be something to take. Return whether a change says so."""
        clock = self._terms.clock
        with anyio.move_on_after(_SECONDS_BETWEEN_LOOKS):
            if next_due_at is None:
                await self._woken.wait()
                return True
            with clock.move_on_after(max(0.0, next_due_at - clock.now().timestamp())):
                await self._woken.wait()
                return True
        return False


def _queues_of(app: App[Any]) -> dict[str, Queue]:
    """Return the queues of an App, those of workflows also under the former names of these."""
    found: dict[str, Queue] = {}
    for name, queue in app.queues.items():
        workflow = app.workflows.get(name)
        for one in (name,) if workflow is None else workflow.blueprint.names:
            found[one] = queue
    return found


def _check_versions(app: App[Any], versions: Mapping[str, Collection[str]]) -> None:
    """Raise ValueError for versions that the workflows of an App do not continue."""
    for name, chosen in versions.items():
        given: list[object] = [] if isinstance(chosen, str) else [*chosen]
        if not given or not all(isinstance(one, str) for one in given):
            raise TypeError(
                f"versions of workflow {name!r} takes a list of texts, such as ['2'], not {chosen!r}"
            )
        workflow = app.workflows.get(name)
        wrong = [one for one in chosen if workflow is None or not workflow.blueprint.continues(one)]
        if workflow is None or wrong:
            raise ValueError(
                f"versions names {', '.join(map(repr, wrong))} of workflow {name!r}, which the App does "
                "not have, or has no migration for"
            )


def _cancel(scopes: set[anyio.CancelScope]) -> None:
    for scope in scopes:
        scope.cancel()
