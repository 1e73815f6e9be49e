"""`Handle`: observe, cancel, continue and signal one run, from any process."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import anyio
from returns.result import Failure, Result

from effectflow.checkpoint import CheckpointError, RunNotEnded, RunStatus
from effectflow.checkpoint.entries import Entry, Published
from effectflow.checkpoint.notifications import woken_by
from effectflow.checkpoint.run_info import has_result
from effectflow.checkpoint.store import is_service
from effectflow.effects.arguments import check_count
from effectflow.effects.clock import Duration, in_seconds
from effectflow.effects.type_variables import Fitting
from effectflow.runs import Workflow
from effectflow.runs.control import pause_run, retry_run, unpause_run
from effectflow.runs.forking import Fork, fork_run
from effectflow.runs.retention import delete_run
from effectflow.runs.run_ids import check_new_run_id
from effectflow.runs.stored_run import Place, run_info
from effectflow.service.changes import Change, changes_of, existing_run, published_value
from effectflow.service.pauses import pauses_in
from effectflow.service.sending import newest_entry, request_cancel, send_value
from effectflow.service.signal import Signal

if TYPE_CHECKING:
    from effectflow.observe.explanation import Explanation

T = TypeVar("T")
E_co = TypeVar("E_co", covariant=True)
Out_co = TypeVar("Out_co", covariant=True)

logger = logging.getLogger(__name__)


class Handle(Generic[E_co, Out_co]):
    """A run, as other processes see it.

    Attributes:
        run_id: the id of the run.
    """

    def __init__(
        self,
        place: Place,
        workflow: Workflow[Any, E_co, Any, Out_co],
        run_id: str,
        *,
        by: str,
        owner: object,
    ) -> None:
        """Refer to a run. `by` is who asks; what follows the run ends with its `owner`, the client."""
        self.run_id = run_id
        self._by = by
        self._owner = owner
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

        Raises TimeoutError when the time is over, which says whether the run is blocked, whether it, its
        queue or its workflow is paused, or whether it is due and no worker has its workflow. Otherwise,
        the run continues.
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
        # Imported late: most programs never wait too long.
        from effectflow.observe.workers import absence

        info = await existing_run(self._place, self.run_id)
        summary = info.summary
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
        now = self._place.scope.clock.now().timestamp()
        if absent := await absence(store, info, now):
            return f"It is due, but {absent}"
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
            await request_cancel(self._checkpoints, self.run_id, by=self._by)

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
            await pause_run(self._checkpoints, self.run_id, by=self._by, clock=clock)

    async def unpause(self) -> None:
        """Let workers continue a paused run, at the time when it is due.

        Raises RunNotFound, RunConflict for a run of another workflow, RunEnded, and ChangeRejected if
        it is not paused.
        """
        async with self._checkpoints.store:
            await self._status()
            clock = self._place.scope.clock
            await unpause_run(self._checkpoints, self.run_id, by=self._by, clock=clock)

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
            await retry_run(self._checkpoints, self.run_id, by=self._by, clock=clock)

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
            made = await fork_run(self._place, self.run_id, Fork(self._by, run_id=run_id))
        return Handle(self._place, self._workflow, made, by=self._by, owner=self._owner)

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

            newest = await newest_entry(self._checkpoints, self.run_id, is_of_key)
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
        changes = changes_of(self._place, self.run_id, after=after, owner=self._owner)
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
