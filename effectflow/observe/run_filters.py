"""Which runs people ask for: by status as they see it, workflow, time, tenant, queue and context."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from effectflow.checkpoint import (
    CheckpointError,
    Checkpoints,
    RunInfo,
    RunQuery,
    RunStatus,
    read_checkpoint,
)
from effectflow.checkpoint.store import CheckpointStore, find_in_pages, store_errors
from effectflow.checkpoint.values import Tree, encode_json, plain_tree
from effectflow.observe.statuses import CRASHED, STATUSES, shown_status

MOST_READ = 1000
"""A page looks at no more runs than this for those that are wanted."""

MOST_OF_STATUS = 100
"""No status is counted further than this."""

MOST_COUNTED = 10_000
"""Nothing is counted further than this: counting a million runs takes seconds."""

_PAGE = 500
"""How many runs to ask the store for at a time."""


@dataclass(frozen=True, slots=True)
class RunsPage:
    """One page of runs.

    Attributes:
        runs: the runs, newest first.
        older: where the next page begins, for `RunQuery.after`; None if no older run is wanted.
        is_full: whether the page has as many runs as were asked for. If not, but there is an `older`,
            the search ended because it had looked at 1,000 runs.
        problems: why the context of some runs could not be read. They are left out.
    """

    runs: tuple[RunInfo, ...]
    older: tuple[float, str] | None
    is_full: bool
    problems: tuple[CheckpointError, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """How many runs there are: `number`, or more if `is_bounded`."""

    number: int
    is_bounded: bool

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.is_bounded else ''}"


@dataclass(frozen=True, slots=True)
class RunFilters:
    """Which runs are wanted.

    Attributes:
        query: what the store looks for.
        statuses: only runs that people see with one of these; empty means any. Stores know no status
            `crashed` among others.
        queue: only runs of the queue with this name; empty means any. Stores do not find runs by it.
        context: only runs whose context has these values, as text or JSON, under these keys.
    """

    query: RunQuery = RunQuery()
    statuses: frozenset[str] = frozenset()
    queue: str = ""
    context: tuple[tuple[str, str], ...] = ()

    async def runs(
        self,
        checkpoints: Checkpoints,
        problems: list[CheckpointError],
        *,
        now: float,
        limit: int | None = None,
    ) -> AsyncGenerator[RunInfo]:
        """Yield the runs, newest first, at most `limit`. A page is read only when it is needed.

        Runs whose context cannot be read are left out, and `problems` says why. `now` is in seconds since
        the epoch.
        """
        count = 0
        size = _PAGE if limit is None or self.finds_more else min(limit, _PAGE)
        async for info in find_in_pages(checkpoints.store, replace(self.query, limit=size)):
            if count == limit:
                return
            if await self._accepts(checkpoints, info, now, problems):
                count += 1
                yield info

    async def page(self, checkpoints: Checkpoints, *, now: float, limit: int) -> RunsPage:
        """Return the next `limit` runs, or fewer if they are not among the next 1,000 of the store."""
        found, problems, read = list[RunInfo](), list[CheckpointError](), 0
        query = replace(self.query, limit=_PAGE if self.finds_more else limit + 1)
        older: tuple[float, str] | None = None
        async with checkpoints.store as store:
            with store_errors(store):
                while read < MOST_READ:
                    page = await store.find(query)
                    for info in page:
                        if len(found) == limit:
                            return RunsPage(tuple(found), found[-1].place, True, tuple(problems))
                        if await self._accepts(checkpoints, info, now, problems):
                            found.append(info)
                    read += len(page)
                    older = page[-1].place if len(page) == query.limit else None
                    if older is None:
                        break
                    query = replace(query, after=older)
        return RunsPage(tuple(found), older, len(found) == limit, tuple(problems))

    async def count(self, checkpoints: Checkpoints, *, now: float) -> Counted:
        """Return how many runs are wanted. It stops at 10,000."""
        number = 0
        async with checkpoints.store:
            async for _ in self.runs(checkpoints, [], now=now, limit=MOST_COUNTED + 1):
                number += 1
        return Counted(min(number, MOST_COUNTED), number > MOST_COUNTED)

    @property
    def finds_more(self) -> bool:
        """Whether the store finds more than what is wanted."""
        is_crashed_alone = self.statuses == frozenset({CRASHED})
        mixed = self.statuses & {RunStatus.RUNNING, CRASHED} and not is_crashed_alone
        return bool(self.context or self.queue or mixed)

    async def _accepts(
        self,
        checkpoints: Checkpoints,
        info: RunInfo,
        now: float,
        problems: list[CheckpointError],
    ) -> bool:
        """Return whether a run is wanted. Note why its context cannot be read."""
        if self.statuses and shown_status(info, now) not in self.statuses:
            return False
        if self.queue and info.summary.queue_name != self.queue:
            return False
        if not self.context:
            return True
        try:
            started = await read_checkpoint(checkpoints.store, info.run_id, checkpoints.seal, at=1)
        except CheckpointError as error:
            problems.append(error)
            return False
        texts = _texts_of(started.context)
        return all(value in texts.get(key, ()) for key, value in self.context)


def read_run_filters(
    *,
    now: float,
    workflow: str | None = None,
    prefix: str = "",
    status: Collection[str] | None = None,
    since: str | None = None,
    before: str | None = None,
    queue: str | None = None,
    context: Collection[str] | None = None,
    parent: str | None = None,
    resumable: bool = False,
) -> RunFilters:
    """Return what texts ask for at `now`, in seconds since the epoch.

    Raise ValueError, which begins with the name of the filter, for what it does not take.
    """
    statuses = _read_statuses(status or ())
    pairs = [_read_pair(text) for text in context or ()]
    query = RunQuery(
        workflow=workflow,
        prefix=prefix,
        statuses=frozenset(
            RunStatus.RUNNING if one == CRASHED else RunStatus(one) for one in statuses
        ),
        parent=parent,
        crashed=statuses == frozenset({CRASHED}),
        tenant=dict(pairs).get("tenant"),
        updated_since=None if since is None else read_moment(since, "since", now),
        updated_before=None if before is None else read_moment(before, "before", now),
        resumable=resumable,
    )
    others = tuple(pair for pair in pairs if pair[0] != "tenant")
    return RunFilters(query, statuses, queue or "", others)


async def read_runs(
    checkpoints: Checkpoints, filters: RunFilters, *, now: float, limit: int
) -> tuple[RunsPage, Mapping[str, Counted]]:
    """Return a page of runs, and how many runs have each status that people see.

    They are counted by the other filters; by a queue, only if all runs that match are on the page.
    """
    is_first = filters.query.after is None and not filters.statuses
    counts: Mapping[str, Counted] = {}
    is_sample = is_first and not (filters.finds_more or _is_indexed(filters.query))
    async with checkpoints.store as store:
        page = await filters.page(checkpoints, now=now, limit=_PAGE if is_sample else limit)
        if is_first and (is_sample or page.older is None):
            counts = statuses_of(page.runs, now, is_bounded=page.older is not None)
        elif not filters.queue:
            counts = await count_statuses(store, filters.query, now)
    if len(page.runs) > limit:
        runs = page.runs[:limit]
        page = RunsPage(runs, runs[-1].place, True, page.problems)
    return page, counts


async def count_statuses(
    store: CheckpointStore, query: RunQuery, now: float
) -> Mapping[str, Counted]:
    """Return how many runs of a query have each status that people see, at a bounded cost.

    Where stores find the runs of each status at once, they are counted to 100 at least. For other
    queries, those among the newest 500 runs that match are counted. What the query says about statuses
    does not matter.
    """
    query = replace(query, statuses=frozenset(), crashed=False, after=None, limit=_PAGE)
    with store_errors(store):
        if not _is_indexed(query):
            page = await store.find(query)
            return statuses_of(page, now, is_bounded=len(page) == _PAGE)
        counts: dict[str, Counted] = {}
        for status in RunStatus:
            # The crashed ones are among those that are running.
            limit = MOST_OF_STATUS * (2 if status is RunStatus.RUNNING else 1)
            page = await store.find(replace(query, statuses=frozenset({status}), limit=limit))
            shown = statuses_of(page, now, is_bounded=len(page) == limit)
            for name in (status, CRASHED) if status is RunStatus.RUNNING else (status,):
                counts[name] = shown[name]
        return counts


def statuses_of(
    runs: Iterable[RunInfo], now: float, *, is_bounded: bool = False
) -> Mapping[str, Counted]:
    """Return how many of these runs have each status that people see. Pure."""
    shown = Counter(shown_status(info, now) for info in runs)
    return {name: Counted(shown[name], is_bounded) for name in STATUSES}


def _is_indexed(query: RunQuery) -> bool:
    """Return whether stores have an index of just these runs for each status."""
    lanes = (query.workflow, query.tenant, query.parent)
    others = (query.prefix, query.run_id, query.updated_since, query.updated_before)
    return sum(map(bool, lanes)) <= 1 and not any(others)


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def read_moment(text: str, name: str, now: float) -> float:
    """Return the time, in seconds since the epoch, of a date, or of a duration before `now`.

    Raise ValueError, which begins with this name, for other text.
    """
    duration = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    try:
        if duration is not None:
            # No run is older, and what is earlier may have no date.
            return max(0.0, now - float(duration[1]) * _UNITS[duration[2]])
        return datetime.fromisoformat(text).astimezone(UTC).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{name} takes a duration, such as 30m, 2h or 7d, or a time, such as 2026-01-31 or "
            f"2026-01-31T09:30, not {text!r}"
        ) from error


def _texts_of(context: Tree) -> dict[str, tuple[str, ...]]:
    """Return, for each key of a context, the texts that match its value: the value and its JSON."""
    plain = plain_tree(context)
    if not isinstance(plain, dict):
        return {}
    return {
        key: (encode_json(value).decode(), *([value] if isinstance(value, str) else []))
        for key, value in plain.items()
    }


def _read_statuses(texts: Iterable[str]) -> frozenset[str]:
    """Return these statuses. Raise ValueError for one that does not exist."""
    for text in texts:
        if text not in STATUSES:
            raise ValueError(f"status takes one of {', '.join(STATUSES)}, not {text!r}")
    return frozenset(texts)


def _read_pair(text: str) -> tuple[str, str]:
    """Return the key and the value in `KEY=VALUE`. Raise ValueError for other text."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError(f"context takes KEY=VALUE, such as tenant=acme, not {text!r}")
    return key, value
