"""The operators of a soak: they control runs at random, and are killed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from random import Random

import anyio

from effectflow import Checkpoints, Client
from effectflow.checkpoint import (
    ChangeRejected,
    RunBusy,
    RunConflict,
    RunEnded,
    RunInfo,
    RunQuery,
    RunStatus,
    ServiceStore,
)
from effectflow.service import Handle
from tests.service.soak.journeys import (
    CHANGED,
    PAID,
    WORKFLOWS,
    Refused,
    World,
    journey,
    payment,
    trifle,
)
from tests.service.soak.processes import PAYMENTS, Place, again

KEPT_TRIFLES = 3
BY_NAME = {one.name: one for one in WORKFLOWS}


class Operator:
    """Controls the runs of a place."""

    def __init__(self, place: Place, store: ServiceStore) -> None:
        self._place, self._store = place, store
        self._client = Client(Checkpoints(store), by="operator")
        self._world = World(self._client.checkpoints, place.world)
        self._chance = Random()
        self._cancelled = set[str]()

    async def disturb(self) -> None:
        """Pause a few runs and the queue, and try a few runs again that can only fail."""
        await self._client.pause(queue=PAYMENTS)
        newest = await self._store.find(RunQuery(limit=200))
        running = [one for one in newest if not one.summary.status.has_ended]
        for info in self._chance.sample(running, min(3, len(running))):
            with suppress(*REJECTED):
                await self._handle(info).pause()
        failed = await self._find(RunStatus.FAILED, workflow=journey.name)
        for info in self._chance.sample(failed, min(2, len(failed))):
            with suppress(*REJECTED):
                await self._handle(info).retry()

    async def help(self) -> None:
        """Let all runs go on that cannot without an operator, and carry out what customers want."""
        await self._client.unpause(queue=PAYMENTS)
        for info in await self._find(RunStatus.PAUSED):
            with suppress(*REJECTED):
                await self._handle(info).unpause()
        self._cancelled |= {one.run_id for one in await self._find(RunStatus.CANCELLED)}
        for run_id in self._place.unwanted.read_text().splitlines():
            if run_id not in self._cancelled:
                with suppress(RunEnded):
                    await self._client.handle(journey, run_id).cancel()
                self._cancelled.add(run_id)
        for info in await self._find(RunStatus.FAILED, workflow=payment.name):
            with suppress(*REJECTED):
                await self._repair(info.run_id)
        payments = await self._store.find(RunQuery(workflow=payment.name, limit=None))
        known = {info.run_id for info in payments}
        for info in payments:
            if info.summary.status.has_ended and info.run_id in self._place.payments:
                await self._repeat(info.run_id, known)
        await self._client.prune(workflow=trifle.name, keep=KEPT_TRIFLES)

    async def _repair(self, run_id: str) -> None:
        # A fork or a rerun is of the same kind.
        match self._place.payments[run_id.removesuffix("-fork").removesuffix("-again")]:
            case "retry":
                await self._client.handle(payment, run_id).retry()
            case "complete":
                await payment.complete_step(run_id, "refuse", PAID).run_or_raise(self._world)
            case _:
                declined = Refused("declined")
                await payment.fail_step(run_id, "collapse", declined).run_or_raise(self._world)

    async def _repeat(self, run_id: str, known: set[str]) -> None:
        """Fork and rerun a payment, unless that has happened."""
        names = (f"{run_id}-fork", f"{run_id}-again")
        with suppress(RunConflict):
            if names[0] not in known:
                made = payment.fork(run_id, changes={"act": CHANGED}, new_run_id=names[0])
                await made.run_or_raise(self._world)
            if names[1] not in known:
                await self._client.handle(payment, run_id).rerun(run_id=names[1])

    async def _find(self, status: RunStatus, *, workflow: str | None = None) -> list[RunInfo]:
        query = RunQuery(statuses=frozenset({status}), workflow=workflow, limit=None)
        return await self._store.find(query)

    def _handle(self, info: RunInfo) -> Handle[Exception, object]:
        return self._client.handle(BY_NAME[info.summary.workflow], info.run_id)


REJECTED = (ChangeRejected, RunBusy, RunEnded)
"""What others do meanwhile may be the reason."""


@asynccontextmanager
async def operator_of(place: Place) -> AsyncGenerator[Operator]:
    async with place.open() as store:
        yield Operator(place, store)


async def operate(place: Place) -> None:
    """Control runs until this process is killed."""
    async with operator_of(place) as operator:
        while True:
            await again(operator.disturb)
            await again(operator.help)
            await anyio.sleep(0.05)
