"""The messages that a run has received, as the process that drives it sees them."""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256

import anyio

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.entries import Signalled
from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.store import NOTICE, CheckpointStore, Message, Record
from effectflow.checkpoint.values import Tree


def seal_message(checkpoints: Checkpoints, run_id: str, topic: str, key: str, value: Tree) -> bytes:
    """Return the body of a message: the value as an entry, signed and encrypted like those of the run."""
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
    except CorruptCheckpoint as error:
        what = f"message {message.key!r} to run {run_id!r} about {message.topic!r}"
        raise CorruptCheckpoint(run_id, error.reason, what=what) from error
    assert isinstance(entry, Signalled)
    return entry.value


def _digest_of_place(run_id: str, topic: str, key: str) -> bytes:
    """Return what the digest of a message begins with, so that it fits no other run or key."""
    parts = (
        sha256(part.encode("utf-8", "surrogatepass")).digest() for part in (run_id, topic, key)
    )
    return sha256(b"message" + b"".join(parts)).digest()


class Mailbox:
    """The messages of one run that were not taken.

    Attributes:
        seen: the number of the newest message that was read.
    """

    def __init__(self, store: CheckpointStore, run_id: str) -> None:
        self.seen = 0
        self._store = store
        self._run_id = run_id
        self._messages: list[Message] = []
        self._notices: list[int] = []
        self._asked = self._answered = 0

    @cached_property
    def _reading(self) -> anyio.Lock:
        # Made with the first look: most runs neither wait nor are resumed.
        return anyio.Lock(fast_acquire=True)

    async def refresh(self) -> None:
        """Read the new messages. All flows that ask before a read begins share it."""
        self._asked += 1
        number = self._asked
        async with self._reading:
            if self._answered >= number:
                return
            asked = self._asked
            new = await self._store.mailbox(self._run_id, after=self.seen)
            self._answered = asked
            if new:
                self.seen = new[-1].number
                self._notices += [message.number for message in new if message.topic == NOTICE]
                self._messages += [message for message in new if message.topic != NOTICE]

    def first(self, topic: str) -> Message | None:
        """Return the oldest message about a topic that was not taken."""
        return next((message for message in self._messages if message.topic == topic), None)

    def take(self, message: Message) -> None:
        """Remove a message. The next append removes it from the store."""
        self._messages.remove(message)

    def take_notices(self) -> list[int]:
        """Remove the notices, which have been noticed. Return their numbers, for the next append."""
        notices, self._notices = self._notices, []
        return notices
