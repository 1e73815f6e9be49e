"""The messages of a run, as the process that drives it sees them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from hashlib import sha256

import anyio

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.entries import Signalled
from effectflow.checkpoint.errors import CheckpointError, CorruptCheckpoint
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.store import (
    NOTICE,
    CheckpointStore,
    Message,
    Record,
    ServiceStore,
    service_of,
    store_errors,
)
from effectflow.checkpoint.values import Tree


def seal_message(checkpoints: Checkpoints, run_id: str, topic: str, key: str, value: Tree) -> bytes:
    """Return the body of a message: the value as an entry, signed and encrypted like all entries."""
    entry = Signalled("", topic, key, value, 0.0)
    body, _ = checkpoints.seal.close(entry, _digest_of_place(run_id, topic, key))
    return body


def open_message(checkpoints: Checkpoints, run_id: str, message: Message) -> Tree:
    """Return the value in a message.

    Raises CorruptCheckpoint if the message was changed, or was sent to another run or with another key.
    """
    record = Record(message.number, message.sent_at, message.body)
    place = _digest_of_place(run_id, message.topic, message.key)
    try:
        entry, _ = checkpoints.seal.open(record, run_id, place)
        if not isinstance(entry, Signalled):
            raise CorruptCheckpoint(run_id, f"it is a {type(entry).__name__}, and no message")
    except CorruptCheckpoint as error:
        what = f"message {message.key!r} to run {run_id!r} about {message.topic!r}"
        raise CorruptCheckpoint(run_id, error.reason, what=what) from error
    return entry.value


def _digest_of_place(run_id: str, topic: str, key: str) -> bytes:
    """Return the digest that a message follows. It makes the message fit only this run and key."""
    parts = (
        sha256(part.encode("utf-8", "surrogatepass")).digest() for part in (run_id, topic, key)
    )
    return sha256(b"message" + b"".join(parts)).digest()


class Mailbox:
    """The messages of one run that were not taken.

    A run takes only one message with the same topic and key, whatever is in the store: a signature does
    not prevent that someone inserts a message again.

    Attributes:
        seen: the number of the newest message that was read.
    """

    def __init__(
        self,
        run_id: str,
        checkpoints: Checkpoints,
        writer: JournalWriter,
        received: Iterable[tuple[str, str]],
    ) -> None:
        """Create the mailbox of a run. `received` has the topic and key of each message that it took."""
        self.seen = 0
        self._received = set(received)
        self._run_id = run_id
        self._checkpoints = checkpoints
        self._writer = writer
        self._messages: list[Message] = []
        self._asked = self._answered = 0

    @cached_property
    def _reading(self) -> anyio.Lock:
        # Created on first use, because most runs neither wait nor are resumed.
        return anyio.Lock(fast_acquire=True)

    async def refresh(self) -> None:
        """Read the new messages, and take the notices among them. Halt the run if that fails."""
        store = self._checkpoints.store
        try:
            with store_errors(store, self._run_id):
                await self._refresh(store)
        except CheckpointError as error:
            raise self._writer.halt(error) from error

    def require(self, purpose: str) -> None:
        """Halt the run if its store has no mailboxes, which are needed for this purpose."""
        try:
            service_of(self._checkpoints.store, purpose)
        except CheckpointError as error:
            raise self._writer.halt(error) from error

    async def _refresh(self, store: CheckpointStore) -> None:
        if not isinstance(store, ServiceStore):
            return
        # All fibers that ask before a read begins share the read.
        self._asked += 1
        number = self._asked
        async with self._reading:
            if self._answered >= number:
                return
            asked = self._asked
            new = await store.mailbox(self._run_id, after=self.seen)
            self._answered = asked
            for message in new:
                self.seen = message.number
                # Notices only ask the fibers to look, which follows.
                if message.topic == NOTICE or (message.topic, message.key) in self._received:
                    self._writer.take(message.number)
                else:
                    self._messages.append(message)

    def first(self, topic: str) -> Message | None:
        """Return the oldest message about a topic that was not taken."""
        return next((message for message in self._messages if message.topic == topic), None)

    def open(self, message: Message) -> Tree:
        """Return the value in a message. Halt the run if the message was changed on its way."""
        try:
            return open_message(self._checkpoints, self._run_id, message)
        except CheckpointError as error:
            raise self._writer.halt(error) from error

    def take(self, message: Message) -> None:
        """Remove a message, and what repeats it. The next append removes them from the store."""
        taken = message.topic, message.key
        self._received.add(taken)
        left: list[Message] = []
        for one in self._messages:
            if (one.topic, one.key) == taken:
                self._writer.take(one.number)
            else:
                left.append(one)
        self._messages = left
