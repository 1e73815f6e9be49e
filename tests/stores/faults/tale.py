"""A durable run that reports which of its entries are durable, for processes that will be killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from effectflow import Checkpoints, Do, Effect, from_fn, step, traverse, workflow
from effectflow.checkpoint import CheckpointStore, Lease, SaveFailed
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


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    say: Callable[[str], object]


@step
def say(word: str) -> Effect[App, str, str]:
    def perform(app: App) -> str:
        app.say(word)
        return word

    return from_fn(perform)


@workflow
def tale(words: list[str]) -> Do[App, str, list[str]]:
    return (yield from traverse(words, say))


class TellingStore(ForwardingStore):
    """Reports each entry once it is durable: `durable RUN SEQUENCE DIGEST`.

    Also reports a failed save whose entries are there all the same: `untrue ERROR`.
    """

    def __init__(self, store: CheckpointStore, tell: Callable[[str], object]) -> None:
        super().__init__(store)
        self._tell = tell

    async def append(
        self, lease: Lease, bodies: Sequence[bytes], *, after: int, **options: Any
    ) -> None:
        try:
            await super().append(lease, bodies, after=after, **options)
        except SaveFailed as error:
            if not error.is_unknown and await self.read(lease.run_id, after=after):
                self._tell(f"untrue {error}")
            raise
        for sequence, body in enumerate(bodies, after + 1):
            self._tell(f"durable {lease.run_id} {sequence} {digest(body)}")


def digest(body: bytes) -> str:
    """Return a digest of the body of an entry."""
    return sha256(body).hexdigest()
