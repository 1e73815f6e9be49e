"""The page of runs: a live table, whose filters are its URL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from effectflow.observe.run_filters import read_runs
from effectflow.observe.statuses import STATUSES, error_of, shown_status
from effectflow.ui.run_selection import FIELDS, Given, filters_of, given_in, text_of
from effectflow.ui.site import Page, Site

ON_PAGE = 50
"""The runs of a page."""

_AGES = {"15m": "15 minutes", "1h": "1 hour", "1d": "1 day", "7d": "7 days"}


@dataclass(frozen=True, slots=True)
class Chip:
    """A link that adds or removes one filter.

    Attributes:
        name: what it is about, such as a status.
        text: what the link says.
        query: the filters behind it.
        is_on: whether the filter is set.
        count: how many runs there are, in words.
    """

    name: str
    text: str
    query: Given
    is_on: bool = False
    count: str = ""


async def list_runs(site: Site, request: Request) -> Page | Response:
    """Show the runs that the filters in the URL find, newest first."""
    given = given_in(request.query_params)
    after = request.query_params.get("after") or None
    if any(not text for text in request.query_params.values()):
        # A form sends its empty fields, too.
        return site.redirect(request, "/", **given, after=after)
    now = site.now
    filters = filters_of(given, now, after)
    found, counts = await read_runs(site.client.checkpoints, filters, now=now, limit=ON_PAGE)
    known = {info.summary.workflow for info in found.runs}
    values = {
        "now": now,
        "error_of": error_of,
        "rows": [(info, shown_status(info, now)) for info in found.runs],
        "found": found,
        "older": None if found.older is None else text_of(found.older),
        "after": after,
        "given": given,
        "fields": FIELDS,
        "statuses": [
            Chip(name, name, toggled(given, "status", name), name in given.get("status", ()), count)
            for name in STATUSES
            for count in [str(counts[name]) if name in counts and counts[name].number else ""]
        ],
        "removable": [*_removable(given)],
        "ages": [
            Chip(age, text, toggled(given, "since", age, only=True), (age,) == given.get("since"))
            for age, text in _AGES.items()
        ],
        "workflows": sorted(known.union(site.app.workflows if site.app else ())),
        "finds_by_reading": bool(filters.queue),
    }
    return Page("runs.html", "Runs", values)


def toggled(given: Given, name: str, value: str, *, only: bool = False) -> Given:
    """Return filters with a value more, or without it if they had it. With `only`, it replaces others."""
    values = given.get(name, ())
    others = tuple(each for each in values if each != value and not only)
    chosen = others if value in values else (*others, value)
    rest = {each: texts for each, texts in given.items() if each != name}
    return {**rest, name: chosen} if chosen else rest


def _removable(given: Given) -> Iterator[Chip]:
    for name, label in FIELDS.items():
        if name in given:
            yield Chip(
                name, f"{label} {given[name][0]}", toggled(given, name, given[name][0]), True
            )
