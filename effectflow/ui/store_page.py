"""The page of the store: what it is, what it has, and whether its runs are undamaged."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from starlette.requests import Request

from effectflow.checkpoint import Checkpoints, RunNotFound, RunStatus, Verification, verify_run
from effectflow.checkpoint.entries import FORMAT
from effectflow.checkpoint.run_info import RunQuery
from effectflow.checkpoint.store import store_errors
from effectflow.observe.overview import MOST_COUNTED, read_overview
from effectflow.ui.request_values import number_in
from effectflow.ui.site import Page, Refused, Site

_MOST_VERIFIED = 200
"""The most runs that a page verifies."""

_MOST_ENTRIES = 50_000
"""The entries after which a page verifies no more runs."""

_ENDED = (RunStatus.COMPLETED, RunStatus.CANCELLED)


@dataclass(frozen=True, slots=True)
class VersionRow:
    """How many unfinished runs have a version of a workflow, and which one the App has."""

    workflow: str
    version: str
    runs: int
    current: str | None


@dataclass(frozen=True, slots=True)
class Checked:
    """The runs that a page has verified.

    Attributes:
        runs: how many.
        entries: how many entries they have.
        damaged: those with a problem.
        is_cut: whether there were more entries than a page verifies.
    """

    runs: int
    entries: int
    damaged: tuple[Verification, ...]
    is_cut: bool = False


async def show_store(site: Site, request: Request) -> Page:
    """Show what the store is and has; and, if asked, whether its newest runs or one run are undamaged."""
    query, checkpoints = request.query_params, site.client.checkpoints
    run_id, count, checked = query.get("run"), _count_in(request), None
    async with checkpoints.store as store:
        with store_errors(store):
            facts = await store.facts()
            overview = await read_overview(store, site.now)
            ended = {
                str(status): len(
                    await store.find(RunQuery(statuses=frozenset({status}), limit=MOST_COUNTED))
                )
                for status in _ENDED
            }
            if run_id:
                checked = await _verified(checkpoints, run_id)
            elif count:
                checked = await _newest_verified(checkpoints, count)
    values = {
        "kind": type(store).__name__,
        "name": repr(store),
        "durability": store.durability,
        "facts": facts,
        "format": FORMAT,
        "counts": {**overview.counts, **{name: count for name, count in ended.items() if count}},
        "most_counted": MOST_COUNTED,
        "versions": [
            VersionRow(workflow, version, runs, _current(site, workflow))
            for (workflow, version), runs in sorted(overview.versions.items())
        ],
        "checked": checked,
        "most_verified": _MOST_VERIFIED,
        "asked": run_id or "",
    }
    return Page("store.html", "Store", values)


def _current(site: Site, workflow: str) -> str | None:
    """Return the version that the App has of a workflow; None if it does not have it."""
    known = None if site.app is None else site.app.recorded.get(workflow)
    return None if known is None else known.version


async def _verified(checkpoints: Checkpoints, run_id: str) -> Checked:
    one = await verify_run(checkpoints.store, run_id, checkpoints.seal)
    return Checked(1, one.length, () if one.problem is None else (one,))


async def _newest_verified(checkpoints: Checkpoints, count: int) -> Checked:
    store, seal = checkpoints.store, checkpoints.seal
    checked: list[Verification] = []
    entries, is_cut = 0, False
    for info in await store.find(RunQuery(limit=count)):
        entries += info.length
        # The first run is verified, however long it is.
        if checked and entries > _MOST_ENTRIES:
            is_cut = True
            break
        # Another process may have deleted it.
        with suppress(RunNotFound):
            checked.append(await verify_run(store, info.run_id, seal))
    return Checked(
        len(checked),
        sum(one.length for one in checked),
        tuple(one for one in checked if one.problem is not None),
        is_cut,
    )


def _count_in(request: Request) -> int | None:
    count = number_in(request, "newest", int)
    if count is not None and not 0 < count <= _MOST_VERIFIED:
        raise Refused(
            f"A page verifies 1 to {_MOST_VERIFIED} runs. `effectflow verify` verifies all."
        )
    return count
