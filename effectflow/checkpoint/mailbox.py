"""The messages of a run, as the process that drives it sees them."""

from __future__ import annotations

import logging
from collections import deque

import anyio

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.errors import CheckpointError, CorruptCheckpoint
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.messages import open_message
from effectflow.checkpoint.store import (
    NOTICE,
    CheckpointStore,
    Message,
    is_service,
    service_of,
    store_errors,
)
from effectflow.checkpoint.values import Tree

logger = logging.getLogger(__name__)


class Mailbox:
    """The messages of one run that were not taken.

    A run takes only one message with the same topic and key, whatever is in the store: a signature does
    not prevent that someone inserts a message again. A message that was changed, or was not sent with the
    keys of the run, is left where it is, with a warning. So it harms nothing, and a process that has the
    keys of its sender receives it.

    Attributes:
        seen: the number of the newest message that was read.
        is_known_empty: whether the claim of the run found no message, so that the first `refresh` need
            not look.
    """

    __slots__ = (
        "_answered",
        "_asked",
        "_checkpoints",
        "_messages",
        "_reading",
        "_received",
        "_run_id",
        "_values",
        "_writer",
        "is_known_empty",
        "seen",
    )

    def __init__(
        self,
        run_id: str,
        checkpoints: Checkpoints,
        writer: JournalWriter,
        received: dict[tuple[str, str], None],
    ) -> None:
        """Create the mailbox of a run. `received` has the topic and key of each message that it took."""
        self.seen = 0
        self.is_known_empty = False
        self._received = received
        self._run_id = run_id
        self._checkpoints = checkpoints
        self._writer = writer
        # By topic, oldest first.
        self._messages: dict[str, deque[Message]] = {}
        self._values: dict[int, Tree] = {}
        self._asked = self._answered = 0
        # Created on first use, because most runs neither wait nor are resumed.
        self._reading: anyio.Lock | None = None

    async def refresh(self, *, halts: bool = True) -> None:
        """Read the new messages, and take the notices among them. Halt the run if that fails.

        Without `halts`, raise the CheckpointError.
        """
        store = self._checkpoints.store
        try:
            with store_errors(store, self._run_id):
                await self._refresh(store)
        except CheckpointError as error:
            if not halts:
                raise
            raise self._writer.halt(error) from error

    def require(self, purpose: str) -> None:
        """Halt the run if its store has no mailboxes, which are needed for this purpose."""
        try:
            service_of(self._checkpoints.store, purpose)
        except CheckpointError as error:
            raise self._writer.halt(error) from error

    async def _refresh(self, store: CheckpointStore) -> None:
        if self.is_known_empty or not is_service(store):
            self.is_known_empty = False
            return
        # All fibers that ask before a read begins share the read.
        self._asked += 1
        number = self._asked
        if self._reading is None:
            self._reading = anyio.Lock(fast_acquire=True)
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
                    self._messages.setdefault(message.topic, deque()).append(message)

    def first(self, topic: str) -> Message | None:
        """Return the oldest message about a topic that was not taken."""
        messages = self._messages.get(topic)
        while messages:
            message = messages[0]
            if message.number in self._values:
                return message
            if (topic, message.key) in self._received:
                # It repeats one that was taken.
                self._writer.take(messages.popleft().number)
                continue
            try:
                value = open_message(self._checkpoints.seal, self._run_id, message)
            except CorruptCheckpoint as error:
                logger.warning("a message is not received: %s", error)
                messages.popleft()
            except CheckpointError as error:
                raise self._writer.halt(error) from error
            else:
                self._values[message.number] = value
                return message
        return None

    def value(self, message: Message) -> Tree:
        """Return the value in a message that `first` has returned."""
        return self._values[message.number]

    def take(self, message: Message) -> None:
        """Remove a message that `first` has returned. The next append removes it from the store."""
        del self._values[message.number]
        self._messages[message.topic].popleft()
        self._received[message.topic, message.key] = None
        self._writer.take(message.number)

    def take_all(self, topic: str) -> None:
        """Remove all messages about a topic, as `take` does."""
        while (message := self.first(topic)) is not None:
            self.take(message)
