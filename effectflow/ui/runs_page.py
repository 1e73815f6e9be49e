"""The page of runs: a live table, whose filters are its URL."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response

from effectflow.observe.run_filters import RunFilters, read_run_filters, read_runs
from effectflow.observe.statuses import STATUSES, error_of, shown_status
from effectflow.ui.site import Page, Refused, Site

FIELDS: Mapping[str, str] = {
    "prefix": "id begins with",
    "workflow": "workflow",
    "tenant": "tenant",
    "queue": "queue",
    "since": "updated since",
    "before": "updated before",
    "parent": "spawned by",
}
"""The filters with one text each, by their names in a URL, with what people read."""

ON_PAGE = 50
"""The runs of a page."""

_AGES = {"15m": "15 minutes", "1h": "1 hour", "1d": "1 day", "7d": "7 days"}

Given: TypeAlias = Mapping[str, Sequence[str]]
"""The texts of filters, by their names in a URL."""


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


def given_in(texts: ImmutableMultiDict[str, str]) -> Given:
    """Return the filters in a URL or in a form, without empty ones and unknown names."""
    found: dict[str, tuple[str, ...]] = {}
    for name in ("status", *FIELDS):
        values = [text for text in texts.getlist(name) if text]
        if values:
            found[name] = tuple(dict.fromkeys(values)) if name == "status" else (values[-1],)
    return found


def filters_of(given: Given, now: float, after: str | None = None) -> RunFilters:
    """Return what filters find at `now`, in seconds since the epoch. Raise Refused for wrong texts."""

    def text(name: str) -> str | None:
        return given[name][0] if name in given else None

    try:
        filters = read_run_filters(
            now=now,
            status=given.get("status"),
            prefix=text("prefix") or "",
            workflow=text("workflow"),
            queue=text("queue"),
            since=text("since"),
            before=text("before"),
            parent=text("parent"),
            context=[f"tenant={given['tenant'][0]}"] if "tenant" in given else None,
        )
        place = None if after is None else _place_in(after)
    except ValueError as error:
        raise Refused(f"{error}.") from error
    return replace(filters, query=replace(filters.query, after=place))


def text_of(place: tuple[float, str]) -> str:
    """Return the place of a run as text for a URL."""
    return f"{place[0]!r},{place[1]}"


def _place_in(text: str) -> tuple[float, str]:
    created_at, comma, run_id = text.partition(",")
    try:
        seconds = float(created_at)
    except ValueError:
        seconds = math.nan
    if not comma or not math.isfinite(seconds):
        raise ValueError(f"after takes a place such as 1767225600.0,order-7, not {text!r}")
    return seconds, run_id


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
