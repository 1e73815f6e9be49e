"""A durable run that reports which of its entries are durable, for processes that will be killed.

On a store that workers can use, it receives its last word as a message, which the step before sends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from effectflow import Checkpoints, Client, Do, Effect, Signal, current_step, step, workflow
from effectflow.checkpoint import (
    Batch,
    CheckpointError,
    CheckpointStore,
    Lease,
    RunInfo,
    SaveFailed,
    ServiceStore,
    StoreUnavailable,
)
from effectflow.effects import from_async, traverse
from effectflow.runs import Workflow
from effectflow.stores import FileStore, SqliteStore
from effectflow.testing.forwarding import ForwardingStore

STORES: dict[str, Callable[[Path], CheckpointStore]] = {
    "file": lambda folder: FileStore(folder / "runs"),
    "sqlite full": lambda folder: SqliteStore(folder / "new" / "runs.db"),
    "sqlite process": lambda folder: SqliteStore(folder / "runs.db", durability="process"),
}
"""Functions that create a store in a folder, by name."""

RUN = "tale"
WORDS = ["once", "upon", "a time"]

heard: Signal[str] = Signal("heard", str)
"""Brings the last word."""


@dataclass(frozen=True)
class App:
    """What the run needs.

    Attributes:
        say: reports a word.
        key: the idempotency key of the last word; None for a new one each time.
        recover: prepares another attempt to send it.
    """

    checkpoints: Checkpoints
    say: Callable[[str], object]
    key: str | None = "last word"
    recover: Callable[[CheckpointError], Awaitable[object]] | None = None

    async def send(self, word: str) -> None:
        while True:
            try:
                handle = Client(self.checkpoints).handle(tale, current_step().run_id)
                return await handle.send(heard, word, idempotency_key=self.key)
            except (SaveFailed, StoreUnavailable) as error:
                if self.recover is None:
                    raise
                await self.recover(error)


@step
def say(word: str, then: str | None = None) -> Effect[App, str, str]:
    """Say a word, and send the one that follows it, if any."""

    async def perform(app: App) -> str:
        app.say(word)
        if then is not None:
            await app.send(then)
        return word

    return from_async(perform)


@workflow
def tale(words: list[str]) -> Do[App, str, list[str]]:
    *first, second_last, last = words
    told = yield from traverse(first, say)
    told.append((yield from say(second_last, last)))
    told.append((yield from say((yield from heard.wait()))))
    return told


@workflow
def short_tale(words: list[str]) -> Do[App, str, list[str]]:
    """Tell all words without a message."""
    return (yield from traverse(words, say))


def tale_on(store: CheckpointStore) -> Workflow[App, str, list[str], list[str]]:
    """Return the tale that a store can keep."""
    return tale if isinstance(store, ServiceStore) else short_tale


class TellingStore(ForwardingStore):
    """Reports each entry once it is durable: `durable RUN SEQUENCE DIGEST`.

    Also reports a failed save whose entries are there all the same: `untrue ERROR`.
    """

    def __init__(self, store: CheckpointStore, tell: Callable[[str], object]) -> None:
        super().__init__(store)
        self._tell = tell

    async def create(self, run_id: str, bodies: Sequence[bytes], **options: Any) -> RunInfo | None:
        async with self._checking(run_id, bodies, after=0):
            info = await super().create(run_id, bodies, **options)
        if info is not None:
            self._tell_durable(run_id, bodies, after=0)
        return info

    async def append(self, lease: Lease, batch: Batch) -> None:
        async with self._checking(lease.run_id, batch.bodies, after=batch.after):
            await super().append(lease, batch)
        self._tell_durable(lease.run_id, batch.bodies, after=batch.after)

    @asynccontextmanager
    async def _checking(
        self, run_id: str, bodies: Sequence[bytes], *, after: int
    ) -> AsyncGenerator[None]:
        try:
            yield
        except SaveFailed as error:
            if not error.is_unknown:
                # A creation also fails if the run exists, with entries of its own.
                found = {record.body for record in await self.read(run_id, after=after)}
                if not found.isdisjoint(bodies):
                    self._tell(f"untrue {error}")
            raise

    def _tell_durable(self, run_id: str, bodies: Sequence[bytes], *, after: int) -> None:
        for sequence, body in enumerate(bodies, after + 1):
            self._tell(f"durable {run_id} {sequence} {digest(body)}")


def digest(body: bytes) -> str:
    """Return a digest of the body of an entry."""
    return sha256(body).hexdigest()
