"""The data of a run: what came in, what it gave, what it published, and what is around it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from effectflow.builders.kinds import job_progress, view_of
from effectflow.checkpoint.entries import Completed
from effectflow.checkpoint.journal_reader import export_run, write_exported
from effectflow.checkpoint.values import Tree, plain_tree, write_json
from effectflow.observe.mailbox import read_mailbox
from effectflow.observe.recorded_run import RecordedRun
from effectflow.observe.spawned_runs import read_spawned, spawned_by
from effectflow.ui.request_values import number_in, run_id_of
from effectflow.ui.run_header import page_of_run, read_run
from effectflow.ui.site import Page, Refused, Site

_MOST = 100
"""The children and the messages of a page."""

_PORTION = 2**18
"""The bytes of a download that are sent at a time."""


async def show_data(site: Site, request: Request) -> Page:
    """Show the data of a run."""
    run = await read_run(site, request)
    recorded, checkpoint = run.recorded, run.recorded.checkpoint
    children = spawned_by(recorded.entries)
    first = number_in(request, "first", int) or 0
    async with site.client.checkpoints.store as store:
        shown = await read_spawned(store, children[first : first + _MOST], run.at)
        mailbox = await read_mailbox(site.client.checkpoints, run.why.run_id, _MOST + 1)
    values = {
        "checkpoint": checkpoint,
        "published": recorded.published,
        "rows": [*view_of(checkpoint.kind).rows(checkpoint)],
        "progress": job_progress(checkpoint),
        "children": shown,
        "children_in_all": len(children),
        "first": first,
        "page_rows": _MOST,
        "mailbox": mailbox[:_MOST],
        "has_more_mail": len(mailbox) > _MOST,
        "letters": [*islice(recorded.dead_letters, _MOST)],
    }
    return page_of_run(run, "data.html", values)


async def download(site: Site, request: Request) -> Response:
    """Send the run as `effectflow export` writes it, or the whole value that `value` names as JSON."""
    run_id = run_id_of(request)
    name = re.sub(r"[^\w.-]+", "-", run_id, flags=re.ASCII)[:80]
    if "value" not in request.query_params:
        async with site.client.checkpoints.store as store:
            exported = await export_run(store, run_id)
        return StreamingResponse(
            _in_portions(write_exported(exported)),
            headers=_as_file(f"{name}.jsonl"),
            media_type="application/jsonl",
        )
    recorded = await site.recent_runs.read(run_id)
    tree = _value_in(recorded, request)
    body = write_json(plain_tree(tree))
    headers = _as_file(f"{name}.{request.query_params['value'][:20]}.json")
    return Response(body, headers=headers, media_type="application/json")


def _in_portions(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in fewer parts: each costs the way to a thread and back."""
    portion = bytearray()
    for line in lines:
        portion += line
        if len(portion) >= _PORTION:
            yield bytes(portion)
            portion.clear()
    yield bytes(portion)


def _as_file(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


def _value_in(run: RecordedRun, request: Request) -> Tree:
    """Return the value that a request names. Raise Refused if there is none."""
    query, checkpoint = request.query_params, run.checkpoint
    found: Iterator[Tree] = iter(())
    match query["value"]:
        case "input":
            return checkpoint.initial_state
        case "context":
            return checkpoint.context
        case "output" if "step" in query:
            ends = (one for one in reversed(run.entries) if isinstance(one, Completed))
            found = (one.output for one in ends if one.step == query["step"])
        case "output" if checkpoint.finished is not None and checkpoint.finished.error is None:
            return checkpoint.finished.output
        case "published":
            found = (one for key, one in run.published.items() if key == query.get("key"))
        case _:
            pass
    for tree in found:
        return tree
    raise Refused(f"Run {run.run_id!r} has no such value.", 404)
