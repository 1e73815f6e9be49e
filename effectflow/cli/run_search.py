"""Which runs `effectflow list` shows."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from effectflow.checkpoint import (
    CheckpointError,
    CheckpointStore,
    RunInfo,
    RunQuery,
    RunStatus,
    Seal,
    read_checkpoint,
)
from effectflow.checkpoint.values import Tree, encode_json, plain_tree
from effectflow.cli.options import BadUse
from effectflow.cli.render import CRASHED, shown_status

STATUSES = tuple(
    shown
    for status in RunStatus
    for shown in ((status, CRASHED) if status is RunStatus.RUNNING else (status,))
)
"""The statuses that `effectflow list` shows and finds."""


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """The runs that a search found.

    Attributes:
        at: the time of the search, in seconds since the epoch.
        runs: newest first.
        has_more: whether more runs match.
        problems: why the context of a run is unknown.
    """

    at: float
    runs: list[RunInfo]
    has_more: bool
    problems: list[CheckpointError]


@dataclass(frozen=True, slots=True)
class RunSearch:
    """The runs to find: a query to the store, and filters that stores do not support.

    Attributes:
        query: its limit and its statuses are not used.
        statuses: only runs that the commands show with one of these; empty means any.
        since: only runs with an entry at or after this time, in seconds since the epoch.
        parent: only runs within this run; None for any.
        context: only runs whose context has these values, as text or JSON, under these keys.
        limit: find at most this many.
        seal: the keys that read the context.
    """

    query: RunQuery
    statuses: frozenset[str]
    since: float | None
    context: tuple[tuple[str, str], ...]
    parent: str | None
    limit: int
    seal: Seal

    @property
    def is_for_all(self) -> bool:
        """Whether every run is wanted."""
        return self.query == RunQuery() and not (
            self.statuses or self.context or self.since is not None or self.parent is not None
        )

    async def run(self, store: CheckpointStore) -> FoundRuns:
        """Return the runs. Raise BadUse if the store has no run of the workflow at all."""
        stored = {RunStatus.RUNNING if one == CRASHED else RunStatus(one) for one in self.statuses}
        # The store applies its limit before the filters here, so it must have none.
        is_filtered = (
            RunStatus.RUNNING in stored
            or self.since is not None
            or self.parent is not None
            or bool(self.context)
        )
        query = replace(
            self.query,
            statuses=frozenset(stored),
            limit=sys.maxsize if is_filtered else self.limit + 1,
        )
        candidates = await store.find(query)
        if not candidates and query.workflow is not None:
            await _check_is_known(store, query.workflow)
        found = FoundRuns(time.time(), [], False, [])
        async for info in self._filtered(store, candidates, found):
            if len(found.runs) == self.limit:
                return replace(found, has_more=True)
            found.runs.append(info)
        return found

    async def _filtered(
        self, store: CheckpointStore, candidates: list[RunInfo], found: FoundRuns
    ) -> AsyncGenerator[RunInfo]:
        for info in candidates:
            if self.statuses and shown_status(info, found.at) not in self.statuses:
                continue
            if self.parent is not None and info.summary.parent != self.parent:
                continue
            if self.since is not None and info.updated_at < self.since:
                continue
            if self.context:
                try:
                    started = await read_checkpoint(store, info.run_id, self.seal, at=1)
                except CheckpointError as error:
                    found.problems.append(error)
                    continue
                texts = _texts_of(started.context)
                if not all(value in texts.get(key, ()) for key, value in self.context):
                    continue
            yield info


def _texts_of(context: Tree) -> dict[str, tuple[str, ...]]:
    """Return, for each key of a context, the texts that match its value: the value and its JSON."""
    plain = plain_tree(context)
    if not isinstance(plain, dict):
        return {}
    return {
        key: (encode_json(value).decode(), *([value] if isinstance(value, str) else []))
        for key, value in plain.items()
    }


async def _check_is_known(store: CheckpointStore, workflow: str) -> None:
    """Raise BadUse, which lists the known workflows, if the store has no run of this one."""
    runs = await store.find(RunQuery(limit=sys.maxsize))
    known = sorted({info.summary.workflow for info in runs})
    if known and workflow not in known:
        raise BadUse(f"this store has no run of workflow {workflow!r}, only of: {', '.join(known)}")


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def read_moment(text: str, now: float) -> float:
    """Return the time, in seconds since the epoch, of a date, or of a duration before `now`.

    Raise BadUse for other text.
    """
    duration = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if duration is not None:
        return now - float(duration[1]) * _UNITS[duration[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise BadUse(
            f"--since takes a duration, such as 30m, 2h or 7d, or a time, such as 2026-01-31 or "
            f"2026-01-31T09:30, not {text!r}"
        ) from error


def read_statuses(texts: Iterable[str]) -> frozenset[str]:
    """Return these statuses. Raise BadUse for one that does not exist."""
    for text in texts:
        if text not in STATUSES:
            raise BadUse(f"--status takes one of {', '.join(STATUSES)}, not {text!r}")
    return frozenset(texts)


def read_pair(text: str) -> tuple[str, str]:
    """Return the key and the value in `KEY=VALUE`. Raise BadUse for other text."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise BadUse(f"--context takes KEY=VALUE, such as tenant=acme, not {text!r}")
    return key, value
