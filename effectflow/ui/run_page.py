"""The page of a run."""

from __future__ import annotations

from starlette.requests import Request

from effectflow.observe.explanation import read_explanation
from effectflow.ui.site import Page, Refused, Site


async def show_run(site: Site, request: Request) -> Page:
    """Show a run: why it is where it is, and what it did."""
    run_id = run_id_of(request)
    found = await read_explanation(site.client.checkpoints, run_id, site.now)
    return Page("run.html", run_id, {"found": found}, run_id=run_id)


def run_id_of(request: Request) -> str:
    """Return the run that a request is about. Raise Refused without one."""
    run_id = request.query_params.get("id")
    if not run_id:
        raise Refused("Say which run: /run?id=...")
    return run_id
