"""The mailbox of a run in a file, `mailbox.json`, and notices that are owed to the parents of runs.

Senders write the mailbox, and drivers do not: `checkpoint.json` has the numbers of the messages that were
taken, so that they are taken in the same write that records them. The next sender removes them here.

The end of a run and the notice to its parent are in different folders, so a process can die between the
two writes. Therefore it first notes what it is about to do. The next search for due runs completes it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from effectflow.checkpoint.store import NOTICE, Message, RunSummary
from effectflow.stores._atomic_files import TEMPORARY, make_folder, write_whole
from effectflow.stores._due import woken
from effectflow.stores._file_format import VERSION, Damaged, check_run_id, content_of, digest_of


@dataclass(frozen=True, slots=True)
class Mailbox:
    """The messages to a run.

    Attributes:
        newest: the number of the newest message, which may be gone.
        messages: those that were not taken.
        received: the topics and keys of all messages except notices.
        taken: the numbers of those that were taken and are still in `mailbox.json`.
    """

    newest: int = 0
    messages: tuple[Message, ...] = ()
    received: frozenset[tuple[str, str]] = frozenset()
    taken: frozenset[int] = frozenset()

    def has_received(self, topic: str, key: str) -> bool:
        """Return whether a message with this topic and key is rejected."""
        return topic != NOTICE and (topic, key) in self.received

    def with_message(self, topic: str, key: str, body: bytes, *, now: float) -> Mailbox:
        """Return the mailbox to write with one more message, and without those that were taken."""
        message = Message(self.newest + 1, topic, key, now, body)
        received = self.received if topic == NOTICE else self.received | {(topic, key)}
        return Mailbox(message.number, (*self.messages, message), received)

    def without(self, taken: Container[int]) -> Mailbox:
        """Return the mailbox after these messages were taken."""
        left = tuple(message for message in self.messages if message.number not in taken)
        gone = {message.number for message in self.messages if message.number in taken}
        return replace(self, messages=left, taken=self.taken | gone)

    @property
    def numbers(self) -> list[int]:
        """The numbers of its messages, oldest first."""
        return [message.number for message in self.messages]

    def wake(self, summary: RunSummary, *, heard: int) -> RunSummary:
        """Return a summary that includes the effect of the messages after number `heard`."""
        for message in self.messages:
            if message.number > heard:
                summary = woken(message.topic, summary, now=message.sent_at)
        return summary


def encode_mailbox(mailbox: Mailbox, run_id: str) -> bytes:
    """Return the bytes of `mailbox.json`."""
    rows = [
        {
            "number": message.number,
            "topic": message.topic,
            "key": message.key,
            "sent_at": message.sent_at,
            "base64": base64.b64encode(message.body).decode(),
        }
        for message in mailbox.messages
    ]
    content: dict[str, Any] = {
        "effectflow": VERSION,
        "run_id": run_id,
        "newest": mailbox.newest,
        "received": sorted(mailbox.received),
        "messages": rows,
    }
    content["sha256"] = digest_of(content)
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def decode_mailbox(data: bytes, run_id: str) -> Mailbox:
    """Return all messages in the bytes of `mailbox.json`, even those that were taken.

    Raise Damaged, UnsupportedVersion or RunConflict as for other files of a run.
    """
    try:
        content = content_of(data, run_id)
        if content.pop("sha256") != digest_of(content):
            raise Damaged("its digest is wrong")
        check_run_id(content, run_id)
        messages = tuple(
            Message(
                row["number"],
                row["topic"],
                row["key"],
                row["sent_at"],
                base64.b64decode(row["base64"], validate=True),
            )
            for row in content["messages"]
        )
        received = frozenset((topic, key) for topic, key in content["received"])
        return Mailbox(content["newest"], messages, received)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(repr(error)) from error


@dataclass(frozen=True, slots=True)
class OwedNotice:
    """A notice to the parent of a run, which may have ended."""

    path: Path
    run_id: str
    parent: str

    def settle(self) -> None:
        """Forget the notice, because it was sent or is not needed."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def owe(folder: Path, run_id: str, parent: str, *, fence: int, length: int) -> OwedNotice:
    """Note durably that the parent must be notified of an append to a run. Raise OSError."""
    make_folder(folder)
    name = hashlib.sha256(run_id.encode()).hexdigest()[:32]
    path = folder / f"{name}-{fence}-{length}.json"
    write_whole(path, orjson.dumps({"run_id": run_id, "parent": parent}))
    return OwedNotice(path, run_id, parent)


def owed_notices(folder: Path) -> Iterator[OwedNotice]:
    """Yield the notices that are still owed."""
    try:
        paths = [path for path in folder.iterdir() if path.suffix != TEMPORARY]
    except FileNotFoundError:
        return
    for path in paths:
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = orjson.loads(path.read_bytes())
            yield OwedNotice(path, content["run_id"], content["parent"])
