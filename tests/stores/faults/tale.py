"""A durable run that reports which of its entries are durable, for processes that will be killed.

It receives its last word as a message, which the step before sends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from effectflow import (
    Checkpoints,
    Client,
    Do,
    Effect,
    Signal,
    Workflow,
    current_step,
    step,
    workflow,
)
from effectflow.checkpoint import (
    CheckpointError,
    CheckpointStore,
    Lease,
    SaveFailed,
    StoreUnavailable,
)
from effectflow.checkpoint.store import Batch, RunInfo
from effectflow.effects import from_async, traverse
from effectflow.stores import FileStore, SqliteStore
from effectflow.testing.forwarding import ForwardingStore

STORES: dict[str, Callable[[Path], CheckpointStore]] = {
    "file": lambda folder: FileStore(folder / "runs", history=2),
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
def monologue(words: list[str]) -> Do[App, str, list[str]]:
    """The same without a message, for a store that only keeps journals."""
    return (yield from traverse(words, say))


def tale_in(store: str) -> Workflow[App, str, list[str], list[str]]:
    """Return the workflow for a store, by its name in `STORES`."""
    return monologue if store == "file" else tale


class TellingStore(ForwardingStore):
    """Reports each entry once it is durable: `durable RUN SEQUENCE DIGEST`.

    Also reports a failed save whose entries are there all the same: `untrue ERROR`.
    """

    def __init__(self, store: CheckpointStore, tell: Callable[[str], object]) -> None:
        super().__init__(store)
        self._tell = tell

    async def create(self, run_id: str, bodies: Sequence[bytes], **options: Any) -> RunInfo | None:
        try:
            created = await super().create(run_id, bodies, **options)
        except SaveFailed as error:
            await self._check_unsaved(run_id, error, after=0)
            raise
        if created is not None:
            self._tell_all(run_id, bodies, after=0)
        return created

    async def append(self, lease: Lease, batch: Batch) -> None:
        try:
            await super().append(lease, batch)
        except SaveFailed as error:
            await self._check_unsaved(lease.run_id, error, after=batch.after)
            raise
        self._tell_all(lease.run_id, batch.bodies, after=batch.after)

    async def _check_unsaved(self, run_id: str, error: SaveFailed, *, after: int) -> None:
        if not error.is_unknown and await self.read(run_id, after=after):
            self._tell(f"untrue {error}")

    def _tell_all(self, run_id: str, bodies: Sequence[bytes], *, after: int) -> None:
        for sequence, body in enumerate(bodies, after + 1):
            self._tell(f"durable {run_id} {sequence} {digest(body)}")


def digest(body: bytes) -> str:
    """Return a digest of the body of an entry."""
    return sha256(body).hexdigest()
