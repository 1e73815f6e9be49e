"""Holding a run while it is driven."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Self

import anyio

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.live_run import LiveRun
from effectflow.checkpoint.past import read_past
from effectflow.checkpoint.reading import Journal, check_against
from effectflow.checkpoint.store import KeepsHistory, RunStatus, RunSummary
from effectflow.effects import Clock

__all__ = ["Claim"]

logger = logging.getLogger(__name__)


class Claim:
    """Holds the lease of a run, and gives it free however the run ends.

    A complete run that is not to be preserved is deleted then, if it is outermost: one within another
    run is asked for its output again whenever that one is resumed.
    """

    def __init__(self, checkpoints: Checkpoints, run_id: str, *, is_outermost: bool) -> None:
        self._checkpoints = checkpoints
        self._run_id = run_id
        self._is_kept = checkpoints.preserve or not is_outermost
        self._lease: Lease | None = None
        self._run: LiveRun | None = None

    async def __aenter__(self) -> Self:
        owner = str(Owner.new())
        try:
            self._lease = await self._claim(owner)
        except Exception:
            raise
        except BaseException:
            # Cut off by a cancellation, it may hold all the same: claim it once more to give it free.
            with anyio.move_on_after(5, shield=True), suppress(Exception):
                await self._checkpoints.store.release(await self._claim(owner))
            raise
        return self

    async def _claim(self, owner: str) -> Lease:
        seconds = self._checkpoints.lease_seconds
        return await self._checkpoints.store.claim(self._run_id, owner=owner, seconds=seconds)

    async def __aexit__(self, *_: object) -> None:
        if self._run is not None:
            await self._run.release()
            if self._run.is_complete and not self._is_kept:
                with self._only_logged("deleted"):
                    await self._checkpoints.store.delete(self._run_id)
        elif self._lease is not None:
            with anyio.move_on_after(5, shield=True), self._only_logged("given free"):
                await self._checkpoints.store.release(self._lease)

    @contextmanager
    def _only_logged(self, what: str) -> Generator[None]:
        """Whatever a store raises here does not change how the run has ended."""
        try:
            yield
        except Exception as error:
            logger.warning("run %r was not %s: %r", self._run_id, what, error)

    async def check_is_whole(self, known: Checkpoint) -> None:
        """Raise CorruptCheckpoint if entries are missing at the end of the journal."""
        info = await self._checkpoints.store.info(self._run_id)
        if info is not None:
            check_against(info, known)

    @property
    def lease(self) -> Lease:
        """What is held, inside of the claim."""
        assert self._lease is not None
        return self._lease

    def live_run(
        self,
        known: Checkpoint,
        journal: Journal,
        context: Mapping[str, object],
        *,
        force: bool = False,
        clock: Clock,
    ) -> LiveRun:
        """The run that goes on from this checkpoint, after the entries that the store has."""
        summary = RunSummary(
            workflow=known.workflow,
            kind=known.kind,
            version=known.definition.version,
            status=RunStatus.RUNNING,
            created_at=known.created_at,
        )
        store = self._checkpoints.store
        if isinstance(store, KeepsHistory):
            store.keep_history(self._run_id, self._checkpoints.history)
        self._run = LiveRun(
            self._run_id,
            self._checkpoints,
            lease=self.lease,
            past=read_past(journal.entries),
            length=len(journal.entries),
            digest=journal.digest,
            summary=summary,
            context=context,
            force=force,
            clock=clock,
        )
        return self._run
