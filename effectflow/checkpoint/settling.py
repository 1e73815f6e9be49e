"""The failures of a run that nothing has settled. A resume retries exactly these.

The rules are in `docs/durability.md`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING

from effectflow.checkpoint.entries import Decided, ErrorRecord, Ranges
from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.failures import is_exact, read_error
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.replay import compressed
from effectflow.checkpoint.values import KnownTypes, Tree, safe_repr

if TYPE_CHECKING:
    from effectflow.checkpoint.flow import DurableFlow


class UnsettledFailures:
    """The sequence numbers of the failures of this life that nothing has settled."""

    __slots__ = ("_sequences", "_unreadable", "_writer")

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer
        self._sequences: list[int] = []
        self._unreadable: dict[int, NotSerializable] = {}

    def add(self, sequence: int) -> None:
        """Note a failure that the workflow may handle."""
        self._sequences.append(sequence)

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
        because = compressed(set(causes), self._sequences)
        sequence = self._writer.add(Decided(path, value, at, True, because))
        self.add(sequence)
        return sequence

    def settle(self, flow: DurableFlow, more: Iterable[int] = ()) -> Ranges:
        """Return the failures that a flow settles by continuing: its own and those of outer flows.

        Halts the run if one of them could not be rebuilt by a resume.
        """
        if not self._sequences:
            return ()
        found = set(more)
        at: DurableFlow | None = flow
        while at is not None:
            found.update(at.unsettled)
            at.unsettled = []
            if at.branches_around is not None:
                found.update(at.branches_around.failures_of_decision())
            at = at.around
        return self._settled(found)

    def settle_within(self, body: DurableFlow) -> Ranges:
        """Return the failures inside a step, which its completion settles."""
        if not self._sequences:
            return ()
        found, body.unsettled = set(body.unsettled), []
        return self._settled(found) if found else ()

    def _settled(self, found: set[int]) -> Ranges:
        sequences = self._sequences
        places = {one: bisect_left(sequences, one) for one in found}
        # Failures that were settled earlier are no longer in the list.
        places = {one: at for one, at in places.items() if sequences[at : at + 1] == [one]}
        for sequence in places:
            if sequence in self._unreadable:
                raise self._writer.halt(self._unreadable[sequence])
        ranges = compressed(places, sequences)
        for at in sorted(places.values(), reverse=True):
            del sequences[at]
        return ranges
