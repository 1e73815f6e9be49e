"""Read the newest entries of a run's journal, without reading all of it."""

from __future__ import annotations

from collections.abc import Callable

from effectflow.checkpoint import Checkpoints, Entry
from effectflow.checkpoint.integrity import first_digest
from effectflow.checkpoint.journal_reader import read_end, read_journal
from effectflow.checkpoint.store import store_errors

_ENTRIES = 32


class JournalTail:
    """Reads the entries of a run as they are appended."""

    def __init__(self, checkpoints: Checkpoints, run_id: str) -> None:
        self._checkpoints = checkpoints
        self._run_id = run_id
        self._length = 0
        self._digest = first_digest(run_id)

    async def read_new(self) -> list[Entry]:
        """Return the entries that were appended since the last call."""
        store, seal = self._checkpoints.store, self._checkpoints.seal
        with store_errors(self._checkpoints.store, self._run_id):
            records = await store.read(self._run_id, after=self._length)
        entries: list[Entry] = []
        for record in records:
            entry, self._digest = seal.open(record, self._run_id, self._digest)
            entries.append(entry)
        self._length += len(records)
        return entries


async def newest_entry(
    checkpoints: Checkpoints, run_id: str, is_wanted: Callable[[Entry], bool]
) -> Entry | None:
    """Return the newest wanted entry of a run, or None. Read backwards from the end."""
    store, seal = checkpoints.store, checkpoints.seal
    with store_errors(checkpoints.store, run_id):
        info = await store.info(run_id)
        if info is None:
            return None
        count = _ENTRIES
        while True:
            entries = await read_end(store, run_id, seal, length=info.length, count=count)
            if not entries:
                # The last entries are unreadable, and this raises the reason.
                entries = (await read_journal(store, run_id, seal)).entries
            for entry in reversed(entries):
                if is_wanted(entry):
                    return entry
            if len(entries) >= info.length:
                return None
            count *= _ENTRIES
