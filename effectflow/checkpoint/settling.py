"""The failures of a run that nothing has settled. A resume retries exactly these.

The rules are in `docs/durability.md`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from effectflow.checkpoint.entries import Decided, ErrorRecord, Ranges
from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.failures import is_exact, read_error
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.replay import compressed
from effectflow.checkpoint.values import KnownTypes, Tree, safe_repr


class UnsettledFailures:
    """The failures of this life that nothing has settled.

    Attributes:
        sequences: the sequence numbers of their entries, sorted.
    """

    __slots__ = ("_unreadable", "_writer", "sequences")

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer
        self.sequences: list[int] = []
        self._unreadable: dict[int, NotSerializable] = {}

    def add(self, sequence: int) -> None:
        """Note a failure that the workflow may handle."""
        self.sequences.append(sequence)

    def check_readable(
        self, sequence: int, error: object, record: ErrorRecord, types: KnownTypes, path: str
    ) -> None:
        """Note whether a resume can rebuild the error of a failure. If not, nothing can settle it."""
        try:
            again = read_error(record, path, types)
        except NotSerializable as unreadable:
            self._unreadable[sequence] = unreadable
            return
        if not is_exact(error, record, again, types):
            reason = f"its failure {safe_repr(error)} would come back as {safe_repr(again)}"
            self._unreadable[sequence] = NotSerializable(path, reason)

    def decide(self, path: str, value: Tree, at: float, causes: Iterable[int]) -> int:
        """Record a decision that is a failure, which unsettled failures have caused.

        Return the sequence number of its entry.
        """
        because = compressed(set(causes), self.sequences)
        sequence = self._writer.add(Decided(path, value, at, True, because))
        self.add(sequence)
        return sequence

    def settle(self, found: set[int]) -> Ranges:
        """Settle those of these failures that earlier entries have not settled. Return their ranges.

        Halts the run if one of them could not be rebuilt by a resume.
        """
        sequences = self.sequences
        places = {one: bisect_left(sequences, one) for one in found}
        # Those that were settled earlier are no longer in the list.
        places = {one: at for one, at in places.items() if sequences[at : at + 1] == [one]}
        for sequence in places:
            if sequence in self._unreadable:
                raise self._writer.halt(self._unreadable[sequence])
        ranges = compressed(places, sequences)
        for at in sorted(places.values(), reverse=True):
            del sequences[at]
        return ranges
