"""`Client`: submit, find and keep runs, from any process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeVar, cast, overload

from effectflow.checkpoint import (
    Checkpoints,
    RunInfo,
    RunNotFound,
    RunQuery,
    RunStatus,
    export_run,
    write_exported,
)
from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.store import find_in_pages, service_of, store_errors
from effectflow.effects.arguments import check_text, check_type
from effectflow.effects.clock import Clock, Duration, SystemClock, finite_time
from effectflow.effects.scope import Scope
from effectflow.effects.type_variables import Fitting
from effectflow.runs import Workflow
from effectflow.runs.control import asker
from effectflow.runs.retention import delete_archived, ended_runs, prune_runs
from effectflow.runs.run_ids import check_new_run_id, new_run_id
from effectflow.runs.start import submit_run
from effectflow.runs.stored_run import Place
from effectflow.service.changes import end_following
from effectflow.service.handle import Handle
from effectflow.service.pauses import Pause, named, pauses_in, remove_pause, save_pause

E = TypeVar("E")
Input = TypeVar("Input")
Out = TypeVar("Out")


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
        return Handle(place, workflow, chosen, by=self.by, owner=self)

    def handle(self, workflow: Workflow[Any, E, Any, Out], run_id: str) -> Handle[E, Out]:
        """Return the handle of a run. The run need not exist yet."""
        return Handle(self._place(workflow), workflow, run_id, by=self.by, owner=self)

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
