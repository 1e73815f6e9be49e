"""The mailboxes of the runs in an SQLite database. All functions are called in a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from effectflow.checkpoint.store import NOTICE, RunStatus, at_once, wakes


def put(
    database: sqlite3.Connection, run: int, topic: str, key: str, body: bytes, now: float
) -> bool:
    """Put a message into the mailbox of a run that has not ended, unless the run has received it before.

    `run` is the number of the run. A message may make the run due at `now`.
    """
    if topic != NOTICE:
        received = database.execute(
            "INSERT INTO received (run, topic, key) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (run, topic, key),
        )
        if not received.rowcount:
            return False
    database.execute(
        "INSERT INTO messages (run, topic, key, sent_at, body) VALUES (?, ?, ?, ?, ?)",
        (run, topic, key, now, body),
    )
    statuses = [str(status) for status in RunStatus if wakes(topic, status)]
    database.execute(
        "UPDATE runs SET due_at = min(ifnull(due_at, ?), ?) WHERE number = ? AND NOT is_nested"
        f" AND status IN ({', '.join(['?'] * len(statuses))})",
        (at_once(now), at_once(now), run, *statuses),
    )
    return True


def notify(database: sqlite3.Connection, parent: str, run_id: str, now: float) -> list[str]:
    """Notify the parent of a run, and the runs that the parent is nested in.

    Return the ids of the notified runs.
    """
    told: list[str] = []
    while (found := receiver(database, parent)) is not None:
        number, status, is_nested, outer = found
        if RunStatus.stored(status, parent).has_ended:
            break
        put(database, number, NOTICE, run_id, b"", now)
        told.append(parent)
        if not is_nested:
            break
        run_id, parent = parent, outer
    return told


def receiver(database: sqlite3.Connection, run_id: str) -> tuple[int, str, bool, str] | None:
    """Return the number, status, nesting and parent of a run, or None if it is unknown."""
    return database.execute(
        "SELECT number, status, is_nested, parent FROM runs WHERE run_id = ?", (run_id,)
    ).fetchone()


def present(database: sqlite3.Connection, run: int | None, numbers: Sequence[int]) -> set[int]:
    """Return which of these messages are in the mailbox of a run."""
    statement = "SELECT 1 FROM messages WHERE run = ? AND number = ?"
    return {number for number in numbers if database.execute(statement, (run, number)).fetchone()}


def remove(database: sqlite3.Connection, run: int, numbers: Sequence[int]) -> None:
    """Remove messages from the mailbox of a run. It still remembers that it received them."""
    database.executemany(
        "DELETE FROM messages WHERE run = ? AND number = ?", [(run, number) for number in numbers]
    )


def has_newer(database: sqlite3.Connection, run: int, seen: int) -> bool:
    """Return whether the mailbox of a run has a message after this number."""
    newer = "SELECT 1 FROM messages WHERE run = ? AND number > ? LIMIT 1"
    return database.execute(newer, (run, seen)).fetchone() is not None


def clear(database: sqlite3.Connection, run: int) -> None:
    """Remove all messages of a run, and the record of those that it took."""
    database.execute("DELETE FROM messages WHERE run = ?", (run,))
    database.execute("DELETE FROM received WHERE run = ?", (run,))
