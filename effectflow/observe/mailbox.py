"""The mailbox of a run: the messages that it has not taken."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.messages import open_message
from effectflow.checkpoint.store import CANCEL, NOTICE, PAUSE, Message, is_service
from effectflow.checkpoint.values import Tree
from effectflow.observe.journal_lines import topic_text


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message in the mailbox of a run, with its value, or with the problem why that is unknown."""

    message: Message
    value: Tree = None
    problem: CheckpointError | None = None

    @property
    def subject(self) -> str:
        """What it is about, in words."""
        topic, is_known = self.message.topic, self.problem is None
        if topic == NOTICE:
            return f"a reason to look at run {self.message.key}"
        if is_known and topic in _REQUESTS:
            return f"a request to {topic} it"
        return topic_text(topic)

    @property
    def has_value(self) -> bool:
        """Whether its value is for the workflow."""
        return self.message.topic not in (NOTICE, *_REQUESTS) and self.problem is None

    @property
    def by(self) -> str:
        """Who has sent a request, such as "ann@host"."""
        return self.value if isinstance(self.value, str) else "somebody"


_REQUESTS = (CANCEL, PAUSE)


async def read_mailbox(
    checkpoints: Checkpoints, run_id: str, limit: int | None = None
) -> list[WaitingMessage]:
    """Return the messages that a run has not taken, oldest first, at most `limit`.

    A store that only keeps journals has none.
    """
    messages = await sealed_messages(checkpoints, run_id)
    return [_opened(checkpoints, run_id, one) for one in islice(messages, limit)]


async def read_requests(checkpoints: Checkpoints, run_id: str) -> list[WaitingMessage]:
    """Return the requests to cancel or to pause a run that it has not taken, oldest first.

    Those that nobody with the keys has sent are left out.
    """
    messages = await sealed_messages(checkpoints, run_id)
    requests = [_opened(checkpoints, run_id, one) for one in messages if one.topic in _REQUESTS]
    return [one for one in requests if one.problem is None]


async def sealed_messages(checkpoints: Checkpoints, run_id: str) -> list[Message]:
    """Return the messages that a run has not taken, oldest first. To open them all takes long."""
    store = checkpoints.store
    return await store.mailbox(run_id) if is_service(store) else []


def _opened(checkpoints: Checkpoints, run_id: str, message: Message) -> WaitingMessage:
    if message.topic == NOTICE:
        return WaitingMessage(message)
    try:
        return WaitingMessage(message, open_message(checkpoints.seal, run_id, message))
    except CheckpointError as error:
        return WaitingMessage(message, problem=error)
