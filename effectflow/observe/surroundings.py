"""What a store has about a run beside its entries: the runs that it has spawned, and its mailbox."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.entries import ChildStarted, Entry
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.messages import open_message
from effectflow.checkpoint.store import (
    CANCEL,
    NOTICE,
    CheckpointStore,
    Message,
    find_run,
    is_service,
)
from effectflow.checkpoint.values import Tree
from effectflow.observe.journal_lines import topic_text
from effectflow.observe.statuses import shown_status


@dataclass(frozen=True, slots=True)
class SpawnedRun:
    """A run that another one has spawned. Its status is None if the store does not have it."""

    run_id: str
    workflow: str
    status: str | None


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
        if is_known and topic == CANCEL:
            return "a request to cancel it"
        return topic_text(topic)

    @property
    def has_value(self) -> bool:
        """Whether its value is for the workflow."""
        return self.message.topic not in (NOTICE, CANCEL) and self.problem is None


def spawned_by(entries: Iterable[Entry]) -> list[ChildStarted]:
    """Return the beginnings of the runs that a run has spawned, each once."""
    # A resume starts a child again with a second entry.
    started = {one.run_id: one for one in entries if isinstance(one, ChildStarted)}
    return list(started.values())


async def read_spawned(
    store: CheckpointStore, spawned: Sequence[ChildStarted], now: float
) -> list[SpawnedRun]:
    """Return these runs with their statuses."""
    found: list[SpawnedRun] = []
    for one in spawned:
        info = await find_run(store, one.run_id)
        status = None if info is None else shown_status(info, now)
        found.append(SpawnedRun(one.run_id, one.workflow, status))
    return found


async def read_mailbox(
    checkpoints: Checkpoints, run_id: str, limit: int | None = None
) -> list[WaitingMessage]:
    """Return the messages that a run has not taken, oldest first, at most `limit`.

    A store that only keeps journals has none.
    """
    store = checkpoints.store
    messages = await store.mailbox(run_id) if is_service(store) else []
    return [_opened(checkpoints, run_id, one) for one in islice(messages, limit)]


def _opened(checkpoints: Checkpoints, run_id: str, message: Message) -> WaitingMessage:
    if message.topic == NOTICE:
        return WaitingMessage(message)
    try:
        return WaitingMessage(message, open_message(checkpoints.seal, run_id, message))
    except CheckpointError as error:
        return WaitingMessage(message, problem=error)
