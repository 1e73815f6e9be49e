"""Which runs a URL or a form selects: by filters, or by their ids."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias

from starlette.datastructures import ImmutableMultiDict

from effectflow.checkpoint import CheckpointStore, CorruptCheckpoint, RunInfo, find_run
from effectflow.checkpoint.store import store_errors
from effectflow.observe.run_filters import Counted, RunFilters, read_run_filters
from effectflow.ui.site import Refused, Site

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

Given: TypeAlias = Mapping[str, Sequence[str]]
"""The texts of filters, by their names in a URL."""

_MOST_IDS = 1000
"""A form selects no more runs than this by their ids."""


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


@dataclass(frozen=True, slots=True)
class Selection:
    """The runs of a form: those with these ids, or all that the filters find.

    Attributes:
        run_ids: the ids, unless there are filters.
        filters: what finds the runs otherwise.
        given: the filters as a form sends them.
    """

    run_ids: Sequence[str]
    filters: RunFilters | None
    given: Given

    async def infos(
        self, site: Site, now: float, limit: int
    ) -> AsyncIterator[tuple[str, RunInfo | None]]:
        """Yield the first `limit` runs with their ids; None for one that is gone or damaged."""
        checkpoints = site.client.checkpoints
        if self.filters is None:
            for run_id in self.run_ids[:limit]:
                yield run_id, await _found(checkpoints.store, run_id)
            return
        async with aclosing(self.filters.runs(checkpoints, [], now=now, limit=limit)) as found:
            async for info in found:
                yield info.run_id, info

    async def count(self, site: Site, now: float) -> Counted:
        """Return how many runs they are; with filters, at most 10,000."""
        if self.filters is None:
            return Counted(len(self.run_ids), False)
        return await self.filters.count(site.client.checkpoints, now=now)

    def inputs(self, after: tuple[float, str] | None = None) -> list[tuple[str, str]]:
        """Return what a form sends to select the same runs again; only those `after` a place."""
        texts, inputs = dict(self.given), [("id", run_id) for run_id in self.run_ids]
        if self.filters is not None:
            query = self.filters.query
            place = after or query.after
            inputs = [("every", "found"), *([] if place is None else [("after", text_of(place))])]
            for name, at in (("since", query.updated_since), ("before", query.updated_before)):
                if at is not None:
                    # Not "an hour ago", which is later then.
                    texts[name] = (datetime.fromtimestamp(at, UTC).isoformat(),)
        return inputs + [(name, text) for name, given in texts.items() for text in given]

    @property
    def found_by(self) -> str:
        """What finds the runs, in words; "" for runs by their ids."""
        return "" if self.filters is None else ", ".join(_in_words(self.given))


def selection_in(form: ImmutableMultiDict[str, str], now: float) -> Selection:
    """Return the runs that a form selects. Raise Refused if it selects none."""
    given = given_in(form)
    every = form.getlist("every")
    if "found" in every:
        if not given:
            raise Refused("Set a filter first: this would be every run of the store.")
        after = form.get("after")
        return Selection((), filters_of(given, now, after or None), given)
    chosen = form.getlist("shown" if "page" in every else "id")
    run_ids = [*dict.fromkeys(text for text in chosen if text)]
    if not run_ids:
        raise Refused("Select runs first, on the page of runs.")
    return Selection(run_ids[:_MOST_IDS], None, given)


async def _found(store: CheckpointStore, run_id: str) -> RunInfo | None:
    try:
        with store_errors(store, run_id):
            return await find_run(store, run_id)
    except CorruptCheckpoint:
        return None


def _in_words(given: Given) -> Iterator[str]:
    if "status" in given:
        yield f"status {' or '.join(given['status'])}"
    yield from (f"{label} {given[name][0]}" for name, label in FIELDS.items() if name in given)
