"""The messages of a run as they are stored: sealed like its entries."""

from __future__ import annotations

import hmac
from hashlib import sha256

from effectflow.checkpoint.entries import Signalled
from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.integrity import Seal
from effectflow.checkpoint.store import CANCEL, Message, Record
from effectflow.checkpoint.values import Tree


def seal_message(seal: Seal, run_id: str, topic: str, key: str, value: Tree = None) -> bytes:
    """Return the body of a message: the value as an entry, signed and encrypted like all entries."""
    entry = Signalled("", topic, key, value, 0.0)
    body, _ = seal.close(entry, _digest_of_place(run_id, topic, key))
    return body


def cancel_request(seal: Seal, run_id: str, by: str = "") -> tuple[str, bytes]:
    """Return the key and the body of a request to cancel a run. `by` says who asks.

    All who have the same keys use the same key, so that a request is received once. One by someone who
    lacks them, which the run ignores, does not take the place of a genuine one.
    """
    names = [run_id, "" if seal.encryption is None else seal.encryption.current]
    key = hmac.digest(seal.key or b"unsigned", repr(names).encode(), "sha256").hex()[:32]
    return key, seal_message(seal, run_id, CANCEL, key, by or None)


def open_message(seal: Seal, run_id: str, message: Message) -> Tree:
    """Return the value in a message. Notices have none, and are not signed: they only ask to look.

    Raises CorruptCheckpoint if the message was changed, or was sent to another run or with another key.
    """
    record = Record(message.number, message.sent_at, message.body)
    place = _digest_of_place(run_id, message.topic, message.key)
    try:
        entry, _ = seal.open(record, run_id, place)
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
