"""Act on many runs: first a page that lists each run with what would happen, then what became of each."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf, nextafter
from tempfile import SpooledTemporaryFile

from anyio import to_thread
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from effectflow.checkpoint import (
    CheckpointError,
    RunInfo,
    StoreUnavailable,
    export_run,
    write_exported,
)
from effectflow.checkpoint.store import store_errors
from effectflow.observe.run_filters import Counted
from effectflow.observe.statuses import shown_status
from effectflow.ui.bulk_actions import BULK_ACTIONS, BulkAction
from effectflow.ui.request_values import submitted
from effectflow.ui.run_selection import Selection, given_in, selection_in
from effectflow.ui.site import Page, Refused, Site

LISTED = 100
"""As many runs are listed on a page; the others are only counted."""

MOST_AT_ONCE = 500
"""One request acts on no more runs than this. The page has a button to go on."""

MOST_IN_FILE = 1000
"""A download has no more runs than this."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What would become of a run, or what became of it, in words."""

    run_id: str
    text: str
    is_done: bool
    info: RunInfo | None = None
    status: str = ""


_GONE = "No: there is no such run, or it is damaged."


async def show_none(site: Site, request: Request) -> Response:
    """Lead one who opens or reloads the URL of the form to the page of runs."""
    return site.redirect(request, "/", **given_in(request.query_params))


async def act_on_runs(site: Site, request: Request) -> Page | Response:
    """Show what an action would do to each selected run, or, once that is confirmed, do it."""
    form, now = await submitted(request), site.now
    action = BULK_ACTIONS.get(form.get("action", ""))
    if action is None:
        raise Refused(f"The actions are {', '.join(BULK_ACTIONS)}.")
    if action.act is not None:
        site.changeable()
    selection = selection_in(form, now)
    is_confirmed = "confirmed" in form
    async with site.client.checkpoints.store:
        if not is_confirmed:
            return await _preview(site, action, selection, now)
        if action.act is None:
            return await _export(site, action, selection, now, skips="skip" in form)
        return await _act(site, action, selection, now)


async def _preview(site: Site, action: BulkAction, selection: Selection, now: float) -> Page:
    listed: list[Outcome] = []
    async for run_id, info in selection.infos(site, now, LISTED):
        listed.append(await _foreseen(site, action, run_id, info, now))
    count = await selection.count(site, now)
    newest = listed[0].info if listed else None
    # What is created or grows old from now on was not seen, so it is left alone.
    inputs = selection.inputs(None if newest is None else _before(newest))
    may_act = any(one.is_done for one in listed) or count.number > len(listed)
    return _page(
        f"{action.verb.capitalize()} runs",
        action,
        selection,
        listed,
        inputs if may_act else None,
        count=count,
        too_many=action.act is None and count.number > MOST_IN_FILE,
    )


def _before(info: RunInfo) -> tuple[float, str]:
    """Return a place after which this run comes, and all older ones."""
    return nextafter(info.summary.created_at, inf), ""


async def _foreseen(
    site: Site, action: BulkAction, run_id: str, info: RunInfo | None, now: float
) -> Outcome:
    if info is None:
        return Outcome(run_id, _GONE, is_done=False)
    status = shown_status(info, now)
    try:
        return Outcome(run_id, await action.foresee(site, info, now), True, info, status)
    except ValueError as error:
        return Outcome(run_id, f"No: {error}.", False, info, status)


async def _act(site: Site, action: BulkAction, selection: Selection, now: float) -> Page:
    """Act on the runs, and tell what became of each. If there are many, offer to go on."""
    assert action.act is not None
    # Before the first one changes, because a changed run may not match any more.
    chosen = [run async for run in selection.infos(site, now, MOST_AT_ONCE)]
    outcomes: list[Outcome] = []
    stopped = ""
    for run_id, info in chosen:
        if info is None:
            outcomes.append(Outcome(run_id, _GONE, is_done=False))
            continue
        try:
            await action.act(site, run_id)
        except StoreUnavailable as error:
            # It is the same for the other runs.
            stopped = str(error)
            break
        except CheckpointError as error:
            outcomes.append(Outcome(run_id, str(error), is_done=False))
        else:
            outcomes.append(Outcome(run_id, f"{action.done.capitalize()}.", is_done=True))
    rest = replace(selection, run_ids=selection.run_ids[len(outcomes) :])
    last = chosen[len(outcomes) - 1][1] if outcomes else None
    goes_on = bool(stopped or rest.run_ids or len(chosen) == MOST_AT_ONCE)
    refused = [each for each in outcomes if not each.is_done]
    listed = [*islice((*refused, *(each for each in outcomes if each.is_done)), LISTED)]
    return _page(
        f"{len(outcomes) - len(refused):,} of {len(outcomes):,} runs were {action.done}",
        action,
        selection,
        listed,
        rest.inputs(None if last is None else last.place) if goes_on else None,
        count=Counted(len(outcomes), False),
        is_done=True,
        stopped=stopped,
    )


async def _export(
    site: Site, action: BulkAction, selection: Selection, now: float, *, skips: bool
) -> Page | Response:
    """Return a file with the runs, as `effectflow import` reads them; or a page, if some are damaged."""
    store, damaged = site.client.checkpoints.store, list[Outcome]()
    # In memory only while it is small. It is complete before the download begins.
    file = SpooledTemporaryFile[bytes](max_size=2**20)
    try:
        with gzip.GzipFile(fileobj=file, mode="wb", filename="") as lines:
            async for run_id, _ in selection.infos(site, now, MOST_IN_FILE):
                try:
                    with store_errors(store, run_id):
                        run = await export_run(store, run_id)
                except StoreUnavailable:
                    raise
                except CheckpointError as error:
                    damaged.append(Outcome(run_id, str(error), is_done=False))
                else:
                    await to_thread.run_sync(lines.writelines, write_exported(run))
    except BaseException:
        file.close()
        raise
    if damaged and not skips:
        file.close()
        return _page(
            f"{len(damaged):,} of the runs cannot be exported",
            action,
            selection,
            damaged[:LISTED],
            [*selection.inputs(), ("skip", "yes")],
            count=await selection.count(site, now),
        )
    file.seek(0)
    return StreamingResponse(
        iter(lambda: file.read(2**16), b""),
        media_type="application/gzip",
        headers={"content-disposition": 'attachment; filename="runs.jsonl.gz"'},
        background=BackgroundTask(file.close),
    )


def _page(
    title: str,
    action: BulkAction,
    selection: Selection,
    listed: Sequence[Outcome],
    inputs: Sequence[tuple[str, str]] | None,
    *,
    count: Counted,
    is_done: bool = False,
    stopped: str = "",
    too_many: bool = False,
) -> Page:
    """Return the page of a preview or a report. Its button sends the `inputs`; None for no button."""
    values = {
        "action": action,
        "listed": listed,
        "inputs": inputs,
        "given": selection.given,
        "found_by": selection.found_by,
        "count": count,
        "is_done": is_done,
        "stopped": stopped,
        "too_many": too_many,
    }
    return Page("bulk.html", title, values)
