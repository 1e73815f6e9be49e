"""The processes of a soak: workers, which are killed, and customers, who ask until they are served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

import anyio
from returns.result import Failure, Result

from effectflow import Checkpoints, Client, Queue
from effectflow.checkpoint import (
    RunStatus,
    SaveFailed,
    ServiceStore,
    StoreUnavailable,
)
from effectflow.checkpoint.store import service_of
from effectflow.service import App, Handle, StoppedBySignal, Worker, run_until_signal
from effectflow.stores import open_store
from tests.service.soak.journeys import (
    KINDS,
    WORKFLOWS,
    Plan,
    Refused,
    World,
    advice,
    journey,
    payment,
    planned,
    trifle,
)

A = TypeVar("A")

PAYMENTS = "payments"
"""The queue of the payments."""

CUSTOMERS = 40
"""The journeys that are in progress at the same time."""

LONGEST_DELAY = 0.5
"""Seconds between two messages of a customer."""

SECONDS_BETWEEN_TRIES = 0.1


@dataclass(frozen=True)
class Place:
    """Where a soak takes place.

    Attributes:
        url: the store.
        folder: for what the processes tell each other.
    """

    url: str
    folder: Path
    runs: int
    seed: int

    def open(self) -> ServiceStore:
        return service_of(open_store(self.url), "a soak")

    @property
    def world(self) -> Path:
        """The file of the side effects."""
        return self.folder / "world"

    @property
    def served(self) -> Path:
        """A file with a line for each journey whose customer has been told its end."""
        return self.folder / "served"

    @property
    def unwanted(self) -> Path:
        """A file with a line for each journey that its customer wants to be cancelled."""
        return self.folder / "unwanted"

    @property
    def payments(self) -> dict[str, str]:
        """The kinds of the payments, by the ids of their runs."""
        return {f"payment-{number}": KINDS[number % 3] for number in range(0, self.runs, 4)}

    @property
    def plans(self) -> list[Plan]:
        return [planned(number, self.seed) for number in range(self.runs)]


async def work(place: Place, *, is_new: bool) -> None:
    """Drive runs until a signal ends this worker. While the server is away, none can begin."""

    def environment(checkpoints: Checkpoints) -> World:
        return World(checkpoints, place.world, is_new)

    app = App[World](
        WORKFLOWS,
        environment=environment,
        checkpoints=Checkpoints(place.open()),
        queues=[Queue(PAYMENTS, limit=4, per_key=2)],
    )

    async def work_forever() -> None:
        # It is not a fault of the runs that their processes die.
        async with Worker(app, suspend_after=0.0, max_crashes=1000):
            await anyio.sleep_forever()

    with suppress(StoppedBySignal):
        await run_until_signal(partial(again, work_forever))


async def serve(place: Place) -> None:
    """Be the customers of all journeys. Each submits one, sends what it waits for, and sees its end."""
    waiting = iter(place.plans)
    async with place.open() as store, anyio.create_task_group() as customers:
        client = Client(Checkpoints(store))

        async def serve_some() -> None:
            for plan in waiting:
                result = await _serve(client, plan, Random(plan.run_id), place)
                assert repr(result) == repr(plan.result), f"{plan} ended in {result}"
                with place.served.open("a") as served:
                    print(plan.run_id, file=served)

        for number, (run_id, kind) in enumerate(place.payments.items()):
            queued = {"queue": PAYMENTS, "key": f"customer {number % 5}"}
            await again(partial(client.submit, payment, kind, run_id=run_id, **queued))
            await again(partial(client.submit, trifle, number, run_id=f"trifle-{number}"))
        for _ in range(CUSTOMERS):
            customers.start_soon(serve_some)


async def _serve(
    client: Client, plan: Plan, chance: Random, place: Place
) -> Result[list[int | str], Exception]:
    handle = await again(lambda: client.submit(journey, plan.legs, run_id=plan.run_id))
    for number in range(plan.legs.count("advice")):
        await anyio.sleep(chance.uniform(0, LONGEST_DELAY))
        await again(partial(handle.send, advice, number, idempotency_key=f"{number}"))
    if plan.ends is RunStatus.CANCELLED:
        await anyio.sleep(chance.uniform(0, 2 * LONGEST_DELAY))
        with place.unwanted.open("a") as unwanted:
            print(plan.run_id, file=unwanted)
    return await again(lambda: _result(handle))


async def _result(handle: Handle[Refused, list[int | str]]) -> Result[list[int | str], Exception]:
    result = await handle.result()
    if isinstance(result, Failure) and isinstance(result.failure(), StoreUnavailable):
        raise result.failure()
    return result


async def again(call: Callable[[], Awaitable[A]]) -> A:
    """Return what a call returns, and try again while the store is out of order."""
    while True:
        try:
            return await call()
        except (SaveFailed, StoreUnavailable):
            await anyio.sleep(SECONDS_BETWEEN_TRIES)
