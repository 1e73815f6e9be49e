"""`Client` and `Handle`: submit, observe, cancel and signal runs, from any process."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, overload
from uuid import uuid4

import anyio
from returns.result import Failure, Result

from effectflow.checkpoint import (
    CheckpointError,
    Checkpoints,
    RunEnded,
    RunInfo,
    RunNotEnded,
    RunNotFound,
    RunQuery,
    RunStatus,
    export_run,
    write_exported,
)
from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.entries import Entry, Published, Signalled
from effectflow.checkpoint.journal_reader import read_end, read_journal
from effectflow.checkpoint.messages import cancel_request, seal_message
from effectflow.checkpoint.notifications import woken_by
from effectflow.checkpoint.store import (
    CANCEL,
    find_in_pages,
    find_run,
    has_result,
    is_service,
    service_of,
    store_errors,
)
from effectflow.effects.arguments import check_count, check_text, check_type
from effectflow.effects.clock import Clock, Duration, SystemClock, finite_time, in_seconds
from effectflow.effects.scope import Scope
from effectflow.effects.type_variables import Fitting
from effectflow.runs import Workflow
from effectflow.runs.control import asker, pause_run, retry_run, unpause_run
from effectflow.runs.forking import Fork, fork_run
from effectflow.runs.retention import delete_archived, delete_run, ended_runs, prune_runs
from effectflow.runs.run_ids import check_new_run_id, new_run_id
from effectflow.runs.start import submit_run
from effectflow.runs.stored_run import Place, run_info
from effectflow.service.changes import (
    Change,
    changes_of,
    end_following,
    existing_run,
    published_value,
)
from effectflow.service.pauses import Pause, named, pauses_in, remove_pause, save_pause
from effectflow.service.signal import Signal

if TYPE_CHECKING:
    from effectflow.observe.explanation import Explanation

E = TypeVar("E")
Input = TypeVar("Input")
Out = TypeVar("Out")
T = TypeVar("T")
E_co = TypeVar("E_co", covariant=True)
Out_co = TypeVar("Out_co", covariant=True)

logger = logging.getLogger(__name__)

_PAGE = 32
"""How many entries to read first in a search for the newest one."""


@dataclass(frozen=True, slots=True)
class _OnlyCheckpoints:
    """The environment of effects that only read."""

    checkpoints: Checkpoints


class Client:
    """Submits, observes, cancels and signals runs, from any process. It executes nothing.

    Workers drive the runs, in this process or in others. Each method opens the store if it is not open;
    `async with` keeps it open.

    Parameters:
        checkpoints: where and how to store the runs; or what has them as `checkpoints`, such as an `App`.
        by: who changes runs with it, for their journals; by default the user of this process and the
            host, such as "ann@host".
        clock: tells the time.

    Example:
        >>> from dataclasses import dataclass
        >>> import anyio
        >>> from effectflow import Checkpoints, Do, pure, workflow
        >>> from effectflow.stores import MemoryStore
        >>> @workflow
        ... def greet(name: str) -> Do[object, str, str]:
        ...     return (yield from pure(f"Hello {name}"))
        >>> async def main():
        ...     async with Client(Checkpoints(MemoryStore())) as client:
        ...         handle = await client.submit(greet, "Ada", run_id="g1")
        ...         print(handle.run_id, await handle.status())
        >>> anyio.run(main)
        g1 pending
    """

    def __init__(
        self,
        checkpoints: Checkpoints | HasCheckpoints,
        *,
        by: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        found: object = getattr(checkpoints, "checkpoints", checkpoints)
        check_type(found, Checkpoints, "a Client takes an App, or Checkpoints(store)")
        self.checkpoints = cast("Checkpoints", found)
        if by is not None:
            check_text("by", by)
        self.by = by or asker()
        self._clock: Clock = clock or SystemClock()

    async def __aenter__(self) -> Self:
        await self.checkpoints.store.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        end_following(self)
        await self.checkpoints.store.__aexit__(*raised)

    @overload
    async def submit(
        self,
        workflow: Workflow[Any, E, None, Out],
        input: None = None,
        *,
        run_id: str | None = None,
        delay: Duration = 0,
        priority: int = 0,
        queue: str = "",
        key: str = "",
        context: Mapping[str, object] | None = None,
        connection: object = None,
    ) -> Handle[E, Out]: ...
    @overload
    async def submit(
        self,
        workflow: Workflow[Any, E, Input, Out],
        input: Fitting[Input],
        *,
        run_id: str | None = None,
        delay: Duration = 0,
        priority: int = 0,
        queue: str = "",
        key: str = "",
        context: Mapping[str, object] | None = None,
        connection: object = None,
    ) -> Handle[E, Out]: ...
    async def submit(
        self,
        workflow: Workflow[Any, E, Any, Out],
        input: Any = None,
        *,
        run_id: str | None = None,
        delay: Duration = 0,
        priority: int = 0,
        queue: str = "",
        key: str = "",
        context: Mapping[str, object] | None = None,
        connection: object = None,
    ) -> Handle[E, Out]:
        """Submit a run for a worker to drive. The run is durable when this returns.

        If a run with this id and the same input exists, return its handle and execute nothing. So a
        request that is sent twice starts one run. The other options of the first one hold.

        Parameters:
            input: the input of the workflow; nothing for one without an input.
            run_id: the id of the run; a random one by default.
            delay: the seconds, or the `timedelta`, until a worker may take it.
            priority: workers take runs with a higher priority first. Any 32-bit integer.
            queue: the queue of the run, whose limits the `App` of the workers declares. A queue that it
                does not declare has none. By default, the queue with the name of the workflow.
            key: whose run it is, such as a tenant. The keys of a queue take turns, so that one with many
                runs does not delay the others.
            context: plain data to keep with the run (tenant, user, trace id), for `run_context`.
            connection: your own connection to the database of the store, in a transaction: a
                `sqlite3.Connection` for an SqliteStore, a `psycopg.AsyncConnection` for a PostgresStore.
                The run is submitted if you commit, and never if you roll back. Until you commit,
                nobody else sees it: handles raise RunNotFound, and on SQLite nothing else can be saved.
                So do not wait for anything else of the store before.

        With `connection`, an error of the driver is raised as it is, and leaves the transaction to you.
        Also raises TypeError for a connection of another kind, ValueError if it is to another database or
        would commit at once, StoreUnavailable for other stores, and RunConflict if the transaction has
        submitted the same id before.

        Raises NotSerializable for an input that is not as declared or cannot be saved, RunConflict if
        the id belongs to another workflow or input, SaveFailed, and StoreUnavailable. If this
        is cancelled, the run may or may not exist: submit it again with the same id. Raises ValueError
        for an id that `Workflow.start` rejects.
        """
        check_new_run_id(run_id)
        seconds = finite_time("delay", delay)
        place = self._place(workflow)
        chosen = new_run_id(workflow.name) if run_id is None else run_id
        async with self.checkpoints.store as store:
            service_of(store, "a submitted run")
            await submit_run(
                place,
                input,
                run_id=chosen,
                context=context,
                delay=seconds,
                priority=priority,
                connection=connection,
                queue=queue,
                key=key,
            )
        return Handle(self, place, workflow, chosen)

    def handle(self, workflow: Workflow[Any, E, Any, Out], run_id: str) -> Handle[E, Out]:
        """Return the handle of a run. The run need not exist yet."""
        return Handle(self, self._place(workflow), workflow, run_id)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        """Return the runs that match, newest first."""
        check_type(query, RunQuery, "find takes a RunQuery, such as RunQuery(workflow='order')")
        async with self.checkpoints.store as store:
            with store_errors(store):
                return await store.find(query)

    async def prune(
        self,
        *,
        before: datetime | Duration | None = None,
        status: RunStatus | None = None,
        workflow: str | None = None,
        keep: int = 0,
        dry_run: bool = False,
    ) -> int:
        """Delete ended runs that are old, in small batches, and return how many.

        A run that has not ended is never deleted, nor one whose parent has not ended, nor the newest run
        of a schedule. It is safe beside workers, and beside another `prune`. If this is cancelled or the
        process dies, each run is deleted completely or not at all.

        Parameters:
            before: only runs that ended before this time, or this many seconds (or `timedelta`) ago.
            status: only runs with this status: completed, cancelled or failed. By default, completed and
                cancelled ones.
            workflow: only runs of the workflow with this name.
            keep: how many of the newest of these runs stay, however old they are.
            dry_run: whether to delete nothing, and only return how many it would be.

        Raises ValueError without `before` and `keep`, and for another status; StoreUnavailable.
        """
        rule = ended_runs(workflow, status, self._moment(before))
        async with self.checkpoints.store:
            return await prune_runs(self.checkpoints, rule, keep, dry_run=dry_run)

    async def archive(
        self,
        path: str | Path,
        *,
        before: datetime | Duration | None = None,
        status: RunStatus | None = None,
        workflow: str | None = None,
        delete: bool = False,
    ) -> int:
        """Write ended runs to a new compressed file, and return how many.

        `ArchiveStore(path)` reads the file, and `effectflow import` copies its runs into a store. The
        file appears when it is complete and durable.

        Parameters:
            path: the file, such as `runs.jsonl.gz`.
            before, status, workflow: which runs, as for `prune`; all completed and cancelled ones by
                default.
            delete: whether to delete the runs then, in small batches. Those that have changed meanwhile
                or that `prune` would not delete stay. If the process dies, every run is in the store or
                in the file, or in both.

        Raises ValueError for another status; FileExistsError if the file exists, and OSError if it cannot
        be written; CorruptCheckpoint for a damaged run, and StoreUnavailable. Then nothing is deleted.
        """
        # Imported late, because most programs archive nothing.
        from effectflow.stores._archive import infos_in, new_archive

        rule, count = ended_runs(workflow, status, self._moment(before)), 0
        async with self.checkpoints.store as store:
            with new_archive(Path(path)) as file:
                async with aclosing(find_in_pages(store, rule)) as runs:
                    async for info in runs:
                        # Another process may have deleted it.
                        with suppress(RunNotFound):
                            file.writelines(write_exported(await export_run(store, info.run_id)))
                            count += 1
            if delete:
                async for _ in delete_archived(store, infos_in(Path(path))):
                    pass
        return count

    def _moment(self, before: datetime | Duration | None) -> float | None:
        """Return a time, or a duration before now, in seconds since the epoch."""
        if before is None or isinstance(before, datetime):
            return None if before is None else before.timestamp()
        return self._clock.now().timestamp() - finite_time("before", before)

    async def pause(
        self, *, queue: str | None = None, workflow: str | None = None, schedule: str | None = None
    ) -> None:
        """Pause a queue, a workflow or a schedule, by its name, for all workers.

        Within a second, workers take no more runs of it, neither new ones nor those that would continue.
        Runs in progress go on until they wait or end; `Handle.pause` pauses one. A paused schedule leaves
        its ticks out. A name that no worker knows is accepted. It stays paused until `unpause`.

        Raises TypeError unless one name is given, and StoreUnavailable.
        """
        kind, name = named(queue=queue, workflow=workflow, schedule=schedule)
        pause = Pause(kind, name, self.by, self._clock.now().timestamp())
        async with self.checkpoints.store as store:
            with store_errors(store):
                await save_pause(service_of(store, "a pause"), pause)

    async def unpause(
        self, *, queue: str | None = None, workflow: str | None = None, schedule: str | None = None
    ) -> None:
        """Let a queue, a workflow or a schedule go on. Nothing happens if it is not paused.

        A schedule goes on with its next tick.

        Raises TypeError unless one name is given, and StoreUnavailable.
        """
        kind, name = named(queue=queue, workflow=workflow, schedule=schedule)
        async with self.checkpoints.store as store:
            with store_errors(store):
                now = self._clock.now().timestamp()
                await remove_pause(service_of(store, "a pause"), kind, name, now=now)

    async def pauses(self) -> list[Pause]:
        """Return the queues, workflows and schedules that are paused."""
        async with self.checkpoints.store as store:
            with store_errors(store):
                return await pauses_in(service_of(store, "a pause"))

    def _place(self, workflow: Workflow[Any, Any, Any, Any]) -> Place:
        check_type(workflow, Workflow, "a Client takes a workflow, such as that of @workflow")
        environment = _OnlyCheckpoints(self.checkpoints)
        return Place.of(workflow.blueprint, self.checkpoints, environment, Scope(self._clock))


class Handle(Generic[E_co, Out_co]):
    """A run, as other processes see it.

    Attributes:
        run_id: the id of the run.
    """

    def __init__(
        self, client: Client, place: Place, workflow: Workflow[Any, E_co, Any, Out_co], run_id: str
    ) -> None:
        self.run_id = run_id
        self._client = client
        self._place = place
        self._workflow = workflow
        self._checkpoints = place.checkpoints

    async def status(self) -> RunStatus:
        """Return the status of the run. It stays `running` if the process of the run dies.

        Raises RunNotFound, and RunConflict for a run of another workflow.
        """
        async with self._checkpoints.store:
            return await self._status()

    async def result(
        self,
        timeout: Duration | None = None,  # noqa: ASYNC109, shorter than a scope around each call
    ) -> Result[Out_co, E_co | CheckpointError]:
        """Wait until the run has ended, and return how: `Success(output)` or `Failure(error)`.

        The error is the one that the workflow failed with, rebuilt as its class, or a CheckpointError:
        RunCancelled, RunNotFound, or NotSerializable for an error that cannot be rebuilt. A run that
        ended in a defect raises it, or a RecordedDefect if it cannot be rebuilt.

        While a run is blocked, this waits, because another worker may continue the run, and logs the
        reason as a warning.

        Parameters:
            timeout: wait for at most this many seconds, or this `timedelta`; by default forever. If
                the run has ended, its result is returned even with 0.

        Raises TimeoutError when the time is over, which says whether the run is blocked, or
        whether it, its queue or its workflow is paused. Otherwise, the run continues.
        """
        store = self._checkpoints.store
        async with store, woken_by(store, self.run_id) as change:
            seconds = None if timeout is None else in_seconds(timeout)
            ended, blocked = await self._ended()
            with anyio.move_on_after(seconds):
                while ended is None:
                    await change.wait()
                    ended, blocked = await self._ended(blocked)
            if ended is None:
                goes_on = await self._how_it_goes_on()
                raise TimeoutError(
                    f"run {self.run_id!r} has not ended within {seconds} s. {goes_on}"
                )
            return ended

    async def _how_it_goes_on(self) -> str:
        """Return why the run, which has not ended, stands still, or that it continues."""
        summary = (await existing_run(self._place, self.run_id)).summary
        if summary.details.blocked:
            return f"It is blocked: {summary.details.blocked}"
        if summary.status is RunStatus.PAUSED:
            return "It is paused: after `handle.unpause()`, the next worker continues it"
        names = {"queue": summary.queue_name, "workflow": summary.workflow}
        store = self._checkpoints.store
        for pause in await pauses_in(store) if is_service(store) else ():
            if names.get(pause.kind) == pause.name:
                what = f"{pause.kind}={pause.name!r}"
                return (
                    f"Its {pause.kind} {pause.name!r} is paused by {pause.by}: after "
                    f"`client.unpause({what})`, the next worker continues it"
                )
        return "It continues, if a worker drives it; `handle.status()` returns its status"

    async def cancel(self) -> None:
        """Request the cancellation of the run: its finalizers and compensations run, and then it ends.

        This returns when the request is durable; `result` waits for the end. If the run ends first, the
        request has no effect. A second request has no effect either. A worker carries it out, or the
        process that drives the run without one, as by `start`; if no process drives it and there are no
        workers, the next resume does.

        Raises RunNotFound, RunConflict for a run of another workflow, and RunEnded if the run is
        completed or cancelled.
        """
        async with self._checkpoints.store:
            await self._status()
            await request_cancel(self._checkpoints, self.run_id, by=self._client.by)

    async def pause(self) -> None:
        """Let nothing continue the run until it is unpaused or resumed.

        If a process drives the run, it begins nothing more, and releases the run once its steps in
        progress have ended; `status` is `paused` then. Nothing is interrupted. Meanwhile, the run
        receives messages, and its timers go on: what has happened is taken when it continues. A
        cancellation ends it anyway.

        Raises RunNotFound; RunConflict for a run of another workflow; RunEnded if the run is completed
        or cancelled; ChangeRejected if it has failed or is paused already.
        """
        async with self._checkpoints.store:
            await self._status()
            clock = self._place.scope.clock
            await pause_run(self._checkpoints, self.run_id, by=self._client.by, clock=clock)

    async def unpause(self) -> None:
        """Let workers continue a paused run, at the time when it is due.

        Raises RunNotFound, RunConflict for a run of another workflow, RunEnded, and ChangeRejected if
        it is not paused.
        """
        async with self._checkpoints.store:
            await self._status()
            clock = self._place.scope.clock
            await unpause_run(self._checkpoints, self.run_id, by=self._client.by, clock=clock)

    async def retry(self) -> None:
        """Let the next worker try the run again, which has failed, is blocked, or was interrupted.

        What the failure came from is tried again, as by `Workflow.resume`. If the failure of the run
        recurs, because its step does not retry it, give the outcome of the step (`complete_step`), or
        fork the run at the step.

        Raises RunNotFound; RunConflict for a run of another workflow; RunEnded if the run is completed
        or cancelled; RunBusy while a process drives it; ChangeRejected if it is pending or suspended.
        """
        async with self._checkpoints.store:
            await self._status()
            clock = self._place.scope.clock
            await retry_run(self._checkpoints, self.run_id, by=self._client.by, clock=clock)

    async def rerun(self, *, run_id: str | None = None) -> Handle[E_co, Out_co]:
        """Make a new run with the input of this one, and return its handle. This one stays as it is.

        A worker drives it. To repeat only what came after a step, use `Workflow.fork`.

        Parameters:
            run_id: the id of the new run; a random one by default.

        Raises RunNotFound, RunConflict for a run of another workflow or if the new run exists, and
        CorruptCheckpoint.
        """
        check_new_run_id(run_id)
        async with self._checkpoints.store:
            made = await fork_run(self._place, self.run_id, Fork(self._client.by, run_id=run_id))
        return Handle(self._client, self._place, self._workflow, made)

    async def delete(self) -> None:
        """Delete the run, with its journal and its messages. Runs that it has spawned continue.

        Nothing of the run is undone. If it has not ended and should undo its work, cancel it first.

        Raises RunNotFound; RunConflict for a run of another workflow; RunBusy while a process drives it;
        ChangeRejected if a run that has not ended has spawned it, and may wait for its result.
        """
        async with self._checkpoints.store:
            await self._status()
            await delete_run(self._checkpoints, self.run_id)

    async def explain(self) -> Explanation:
        """Return why the run is where it is: which process has it, what it waits for, or why it failed.

        Its `moves` are the commands that would move it; as a string, it has the reason and these.

        Raises RunNotFound, and RunConflict for a run of another workflow.
        """
        # Imported late: few programs ask for it.
        from effectflow.observe.explanation import read_explanation

        async with self._checkpoints.store as store:
            await self._status()
            now = self._place.scope.clock.now().timestamp()
            pauses = await pauses_in(store) if is_service(store) else ()
            return await read_explanation(self._checkpoints, self.run_id, now, pauses)

    async def send(
        self, signal: Signal[T], value: Fitting[T], *, idempotency_key: str | None = None
    ) -> None:
        """Send the value of a signal to the run, which receives it where it waits for the signal.

        The value is durable when this returns, and kept until the run waits for it. The run receives the
        values of a signal in the order in which they were sent.

        Parameters:
            signal: the signal.
            value: the value; it is checked against the type of the signal.
            idempotency_key: the run receives only one value of the signal with this key, however often
                you send it. Without a key, each call sends another value.

        Raises NotSerializable, with the path of the part, for a value that is not as the signal declares
        or cannot be saved; RunNotFound; RunConflict for a run of another workflow; RunEnded if the run is
        completed or cancelled and has not received the value before; and MailboxFull if too many values
        wait for the run: 16 MiB of them as stored, with 1 KiB more for each.
        """
        async with self._checkpoints.store:
            await self._status()
            await send_value(
                self._checkpoints,
                self.run_id,
                signal,
                cast("T", value),
                idempotency_key=idempotency_key,
            )

    async def published(self, key: str) -> object:
        """Return the latest value that the run published under this key; None if there is none.

        Raises RunNotFound, and RunConflict for a run of another workflow.
        """
        async with self._checkpoints.store:
            await self._status()

            def is_of_key(entry: Entry) -> bool:
                return isinstance(entry, Published) and entry.key == key

            newest = await _newest_entry(self._checkpoints, self.run_id, is_of_key)
            if not isinstance(newest, Published):
                return None
            return published_value(self._place, self.run_id, newest)

    def __aiter__(self) -> AsyncGenerator[Change]:
        """Yield the status of the run, its published values, and then every change; see `changes`."""
        return self.changes()

    async def changes(self, *, after: int = 0) -> AsyncGenerator[Change]:
        """Yield the status of the run, its published values, and then every change until it has ended.

        This also ends when the client is closed with its `async with` block, or a worker on its store
        ends in this event loop: then `status` tells that the run has not ended. A status that lasts only
        for a moment may be skipped. To stop early, close the iterator (`contextlib.aclosing`).

        Parameters:
            after: the `sequence` of the last change that is known. Only what came later is yielded, so
                that one who reconnects sees nothing twice.

        Raises RunNotFound, and RunConflict for a run of another workflow.
        """
        check_count("after", after, least=0)
        changes = changes_of(self._place, self.run_id, after=after, owner=self._client)
        async with aclosing(changes):
            async for change in changes:
                yield change

    async def _ended(
        self, known: str = ""
    ) -> tuple[Result[Out_co, E_co | CheckpointError] | None, str]:
        """Return how the run ended, or None; and why it is blocked, or "", and log that if it is new."""
        try:
            info = await run_info(self._place, self.run_id)
        except CheckpointError as error:
            return Failure(error), ""
        # Checking for the end at each change must not read the whole journal.
        if info is not None and not has_result(info.summary.status):
            blocked = info.summary.details.blocked
            if blocked and blocked != known:
                logger.warning(
                    "run %r, whose result is awaited, is blocked: %s", self.run_id, blocked
                )
            return None, blocked
        result = await self._workflow.result(self.run_id).run(self._place.env)
        has_continued = isinstance(result, Failure) and isinstance(result.failure(), RunNotEnded)
        return None if has_continued else result, ""

    async def _status(self) -> RunStatus:
        return (await existing_run(self._place, self.run_id)).summary.status

    def __repr__(self) -> str:
        return f"<Handle of run {self.run_id!r} of {self._workflow.name!r}>"


async def send_value(
    checkpoints: Checkpoints,
    run_id: str,
    signal: Signal[T],
    value: T,
    *,
    idempotency_key: str | None,
) -> None:
    """Send a value to a run. The parameters and errors are those of `Handle.send`."""
    check_type(signal, Signal, "send takes the Signal that the workflow waits for")
    key = uuid4().hex if idempotency_key is None else idempotency_key
    check_text("an idempotency key", key)
    tree = signal.encode(value, checkpoints)
    body = seal_message(checkpoints.seal, run_id, signal.topic, key, tree)
    async with checkpoints.store as store:
        try:
            with store_errors(checkpoints.store, run_id, saves="message"):
                service = service_of(store, "a signal")
                await service.send(run_id, signal.topic, key=key, body=body)
        except RunEnded:
            if idempotency_key is None or not await _has_received(
                checkpoints, run_id, signal.topic, key
            ):
                raise


async def request_cancel(checkpoints: Checkpoints, run_id: str, *, by: str) -> None:
    """Request the cancellation of a run. `by` says who asks. The errors are those of `Handle.cancel`."""
    async with checkpoints.store as store:
        with store_errors(checkpoints.store, run_id, saves="message"):
            service = service_of(store, "a cancellation")
            key, body = cancel_request(checkpoints.seal, run_id, by)
            await service.send(run_id, CANCEL, key=key, body=body)


async def _has_received(checkpoints: Checkpoints, run_id: str, topic: str, key: str) -> bool:
    def is_of_message(entry: Entry) -> bool:
        return isinstance(entry, Signalled) and (entry.topic, entry.key) == (topic, key)

    return await _newest_entry(checkpoints, run_id, is_of_message) is not None


async def _newest_entry(
    checkpoints: Checkpoints, run_id: str, is_wanted: Callable[[Entry], bool]
) -> Entry | None:
    """Return the newest wanted entry of a run, or None. Read backwards from the end."""
    store, seal = checkpoints.store, checkpoints.seal
    with store_errors(checkpoints.store, run_id):
        info = await find_run(store, run_id)
        if info is None:
            return None
        count = _PAGE
        while True:
            entries = await read_end(store, run_id, seal, length=info.length, count=count)
            if not entries:
                # The last entries are unreadable, and this raises the reason.
                entries = (await read_journal(store, run_id, seal)).entries
            for entry in reversed(entries):
                if is_wanted(entry):
                    return entry
            if len(entries) >= info.length:
                return None
            count *= _PAGE
