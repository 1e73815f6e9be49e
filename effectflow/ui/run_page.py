"""The page of a run: why it is where it is, and its steps."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request

from effectflow.ui.request_values import number_in
from effectflow.ui.run_header import page_of_run, read_run
from effectflow.ui.site import Page, Refused, Site
from effectflow.ui.step_panel import panel_of
from effectflow.ui.steps import ROWS, SHOWN, View, shown_state, steps_of


async def show_run(site: Site, request: Request) -> Page:
    """Show a run: why it is where it is, what it did, and the step that `step` names."""
    run, view = await read_run(site, request), view_in(request)
    steps = steps_of(run.recorded, view, run.at)
    panel = panel_of(run.recorded, view.step, run.why) if view.step else None
    values = {
        "view": view,
        "steps": steps,
        "panel": panel,
        "kept": _kept(request),
        "page_rows": ROWS,
        "state_of": partial(shown_state, is_held=run.why.is_held),
    }
    return page_of_run(run, "run.html", values)


def view_in(request: Request) -> View:
    """Return what of the steps a reader wants to see. Raise Refused for what is not possible."""
    query = request.query_params
    view = View(
        query.get("by", ""),
        query.get("show", ""),
        query.get("find", "").strip(),
        query.get("step", ""),
        number_in(request, "first", int),
        number_in(request, "from", float),
        number_in(request, "to", float),
    )
    if view.by not in ("", "steps", "flows") or view.show not in ("", *SHOWN):
        raise Refused("The steps of a run are shown by=steps or by=flows, and show= is unknown.")
    return view


def _kept(request: Request) -> dict[str, str]:
    """Return the query of the page, for links that change a part of it."""
    return {name: text for name, text in request.query_params.items() if name in _QUERY and text}


_QUERY = ("id", "by", "show", "find", "step", "first", "from", "to")
