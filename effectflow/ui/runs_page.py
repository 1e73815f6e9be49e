"""The page of runs."""

from __future__ import annotations

from starlette.requests import Request

from effectflow.checkpoint import RunQuery
from effectflow.observe.statuses import shown_status
from effectflow.ui.site import Page, Site


async def list_runs(site: Site, request: Request) -> Page:
    """Show the newest runs."""
    now = site.now
    found = await site.client.find(RunQuery(limit=50))
    rows = [(info, shown_status(info, now)) for info in found]
    return Page("runs.html", "Runs", {"rows": rows})
