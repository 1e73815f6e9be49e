"""The history of a run: its entries, its state after any of them, and what changed between two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from starlette.requests import Request

from effectflow.builders.kinds import view_of
from effectflow.checkpoint.entries import Entry
from effectflow.observe.differences import (
    MOST_DIFFERENCES,
    differences_between,
)
from effectflow.observe.journal_lines import JournalLine, journal_lines
from effectflow.ui.formatting import utc
from effectflow.ui.request_values import number_in
from effectflow.ui.run_header import page_of_run, read_run
from effectflow.ui.site import Page, Site

_PAGE = 100
"""The entries of a page."""

_ABOVE = 8
"""The entries above the chosen one, so that it can be seen without scrolling."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where in a history the reader is.

    Attributes:
        at: the number of the chosen entry.
        since: the number of the entry that it is compared with; 0 for before the first one.
        length: how many entries there are.
    """

    at: int
    since: int
    length: int

    @property
    def first(self) -> int:
        """The number of the first entry of the page, which has the chosen one near its top."""
        return max(min(self.at - _ABOVE, self.length - _PAGE + 1), 1)

    @property
    def last(self) -> int:
        """The number of the last entry of this page."""
        return min(self.first + _PAGE - 1, self.length)

    @property
    def earlier(self) -> int:
        """The entry to choose for the page before this one."""
        return max(self.first - _PAGE + _ABOVE, 1)

    @property
    def later(self) -> int:
        """The entry to choose for the page after this one."""
        return min(self.last + 1 + _ABOVE, self.length)


async def show_history(site: Site, request: Request) -> Page:
    """Show the entries of a run, and its state after the one that `at` names."""
    run = await read_run(site, request)
    run_id, entries = run.recorded.run_id, run.recorded.entries
    place = _position_of(request, len(entries))
    # Before the header is made, which needs the state at the end: it comes from the same pass.
    states = run.recorded.states_after({place.since, place.at} - {0})
    state, before = states[place.at], states.get(place.since)
    differences = () if before is None else differences_between(before, state)
    values = {
        "place": place,
        "began": entries[0].at,
        "at": entries[place.at - 1].at,
        "lines": _lines(entries, place),
        "state": state,
        "rows": list(view_of(state.checkpoint.kind).rows(state.checkpoint)),
        "differences": differences,
        "is_cut": len(differences) == MOST_DIFFERENCES,
    }
    return page_of_run(run, "history.html", values, f"{run_id}, entry {place.at}")


def _position_of(request: Request, length: int) -> Position:
    """Return where the reader wants to be: by default at the end. Raise Refused for what is no number."""
    at, since = number_in(request, "at", int), number_in(request, "since", int)
    at = length if at is None else min(max(at, 1), length)
    return Position(at, at - 1 if since is None else min(since, length), length)


def _lines(entries: Sequence[Entry], place: Position) -> list[JournalLine]:
    lines = journal_lines(entries, utc, first=place.first)
    return list(islice(lines, place.last - place.first + 1))
