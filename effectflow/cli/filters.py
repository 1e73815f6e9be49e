"""The options that say which runs a command is about, and what finds these runs."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated

import typer

from effectflow.checkpoint import (
    CheckpointError,
    CheckpointStore,
    RunInfo,
    RunQuery,
    RunStatus,
    read_checkpoint,
)
from effectflow.checkpoint.store import find_in_pages
from effectflow.checkpoint.values import Tree, encode_json, plain_tree
from effectflow.cli.access import Access
from effectflow.cli.options import BadUse
from effectflow.cli.suggestions import message_of
from effectflow.observe.statuses import CRASHED, STATUSES, shown_status

WorkflowOption = Annotated[str | None, typer.Option(help="Only runs of this workflow.")]
StatusOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="STATUS",
        help=f"Only runs that are {', '.join(STATUSES[:-1])} or {STATUSES[-1]}. Repeat it for several.",
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(help="Only runs updated since then: 30m, 2h or 7d ago, or a date and time."),
]
BeforeOption = Annotated[
    str | None,
    typer.Option(help="Only runs not updated since then: 2h or 30d ago, or a date and time."),
]
ContextOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Only runs with this in their context. Repeat it for several. Stores find runs by their "
        "tenant; for other keys, this reads the runs one after the other.",
    ),
]
ParentOption = Annotated[
    str | None, typer.Option(metavar="RUN_ID", help="Only runs within this run.")
]
FILTERS = {
    "workflow": WorkflowOption,
    "status": StatusOption,
    "since": SinceOption,
    "before": BeforeOption,
    "context": ContextOption,
    "parent": ParentOption,
}
"""The options by the names of the parameters of `read_filters`. Each is None unless it is given."""

_PAGE = 500
"""How many runs to ask the store for at a time."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which runs are wanted.

    Attributes:
        query: what the store looks for.
        statuses: only runs that the commands show with one of these; empty means any. Stores know no
            status `crashed` among others.
        context: only runs whose context has these values, as text or JSON, under these keys.
    """

    query: RunQuery
    statuses: frozenset[str] = frozenset()
    context: tuple[tuple[str, str], ...] = ()

    async def runs(
        self, access: Access, problems: list[str], *, limit: int | None = None
    ) -> AsyncIterator[RunInfo]:
        """Yield the runs, newest first, at most `limit`. A page is read only when it is needed.

        Runs whose context cannot be read are left out, and `problems` says why.
        """
        now, count = time.time(), 0
        size = _PAGE if limit is None or self._finds_more else limit
        async for info in find_in_pages(access.store, replace(self.query, limit=size)):
            if count == limit:
                return
            try:
                if not await self._accepts(access, info, now):
                    continue
            except CheckpointError as error:
                problems.append(f"effectflow: its context is unknown: {message_of(error)}")
                continue
            count += 1
            yield info

    @property
    def _finds_more(self) -> bool:
        """Whether the store finds more than what is wanted."""
        is_crashed_alone = self.statuses == frozenset({CRASHED})
        mixed = self.statuses & {RunStatus.RUNNING, CRASHED} and not is_crashed_alone
        return bool(self.context or mixed)

    async def _accepts(self, access: Access, info: RunInfo, now: float) -> bool:
        """Return whether a run is wanted. Raise CheckpointError if its context cannot be read."""
        if self.statuses and shown_status(info, now) not in self.statuses:
            return False
        if not self.context:
            return True
        started = await read_checkpoint(access.store, info.run_id, access.seal, at=1)
        texts = _texts_of(started.context)
        return all(value in texts.get(key, ()) for key, value in self.context)


def read_filters(
    *,
    workflow: str | None = None,
    status: Collection[str] | None = None,
    since: str | None = None,
    before: str | None = None,
    context: Collection[str] | None = None,
    parent: str | None = None,
    resumable: bool = False,
) -> Filters:
    """Return what the options ask for. Raise BadUse for what they do not take."""
    statuses = _read_statuses(status or ())
    pairs = [_read_pair(text) for text in context or ()]
    query = RunQuery(
        workflow=workflow,
        statuses=frozenset(
            RunStatus.RUNNING if one == CRASHED else RunStatus(one) for one in statuses
        ),
        parent=parent,
        crashed=statuses == frozenset({CRASHED}),
        tenant=dict(pairs).get("tenant"),
        updated_since=None if since is None else read_moment(since, "--since"),
        updated_before=None if before is None else read_moment(before, "--before"),
        resumable=resumable,
    )
    return Filters(query, statuses, tuple(pair for pair in pairs if pair[0] != "tenant"))


async def check_is_known(store: CheckpointStore, workflow: str | None) -> None:
    """Raise BadUse, which lists those of the newest runs, if the store has no run of this workflow."""
    if workflow is None or await store.find(RunQuery(workflow=workflow, limit=1)):
        return
    if newest := await store.find(RunQuery(limit=_PAGE)):
        names = ", ".join(sorted({info.summary.workflow for info in newest}))
        raise BadUse(
            f"this store has no run of workflow {workflow!r}; its newest runs are of: {names}"
        )


def _texts_of(context: Tree) -> dict[str, tuple[str, ...]]:
    """Return, for each key of a context, the texts that match its value: the value and its JSON."""
    plain = plain_tree(context)
    if not isinstance(plain, dict):
        return {}
    return {
        key: (encode_json(value).decode(), *([value] if isinstance(value, str) else []))
        for key, value in plain.items()
    }


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def read_moment(text: str, option: str) -> float:
    """Return the time, in seconds since the epoch, of a date, or of a duration before now.

    Raise BadUse for other text.
    """
    duration = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if duration is not None:
        return time.time() - float(duration[1]) * _UNITS[duration[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise BadUse(
            f"{option} takes a duration, such as 30m, 2h or 7d, or a time, such as 2026-01-31 or "
            f"2026-01-31T09:30, not {text!r}"
        ) from error


def _read_statuses(texts: Iterable[str]) -> frozenset[str]:
    """Return these statuses. Raise BadUse for one that does not exist."""
    for text in texts:
        if text not in STATUSES:
            raise BadUse(f"--status takes one of {', '.join(STATUSES)}, not {text!r}")
    return frozenset(texts)


def _read_pair(text: str) -> tuple[str, str]:
    """Return the key and the value in `KEY=VALUE`. Raise BadUse for other text."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise BadUse(f"--context takes KEY=VALUE, such as tenant=acme, not {text!r}")
    return key, value
