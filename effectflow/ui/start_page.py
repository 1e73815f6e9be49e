"""The page on which people start runs of the workflows of an App."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from effectflow.checkpoint import CorruptCheckpoint
from effectflow.checkpoint.checkpoint import fold
from effectflow.checkpoint.entries import Started
from effectflow.checkpoint.errors import NotSerializable, RunConflict
from effectflow.checkpoint.journal_reader import Journal, read_existing
from effectflow.checkpoint.values import plain_tree
from effectflow.runs.run_ids import new_run_id
from effectflow.service import App
from effectflow.service.environment import AnyWorkflow
from effectflow.ui.forms import (
    Field,
    Form,
    Mistyped,
    checked_id,
    described,
    form_of,
    input_field,
    made_input,
    one_line,
    recorded_input,
)
from effectflow.ui.request_values import submitted
from effectflow.ui.site import Page, Refused, Site


async def show_start(site: Site, request: Request) -> Page:
    """Show the workflows to choose from, and the form of the chosen one."""
    app, like = site.changeable(), await _like(site, request)
    workflow = _chosen(app, request, like)
    if workflow is None:
        return _page(app, None, None)
    form, note = _form(site, workflow, like)
    return _page(app, workflow, form, note=note)


async def do_start(site: Site, request: Request) -> Page | Response:
    """Submit a run, and show it; or show the form again, with what is wrong."""
    app, like = site.changeable(), await _like(site, request)
    workflow = _chosen(app, request, like)
    if workflow is None:
        raise Refused("Say which workflow: /start?workflow=...")
    typed = dict(await submitted(request))
    form = replace(_form(site, workflow, None)[0], typed=typed)
    options = site.client.checkpoints.value_options
    if (changed := form.changed(options)) is not None:
        return _page(app, workflow, changed)
    try:
        run_id = await _submit(site, workflow, form.values(options))
    except Mistyped as error:
        form = replace(form, problems=error.problems)
        return _page(app, workflow, form, note="Nothing was started yet: see below.", status=422)
    return site.redirect(request, "/run", id=run_id, done="start")


async def _submit(site: Site, workflow: AnyWorkflow, values: Mapping[str, Any]) -> str:
    run_id = checked_id(values["run_id"])
    try:
        handle = await site.client.submit(
            workflow,
            made_input(workflow, values["input"]),
            run_id=run_id,
            queue=values["queue"],
            key=values["key"],
            priority=values["priority"] or 0,
            delay=values["delay"] or 0,
            context=values["context"],
        )
    except RunConflict as error:
        raise Mistyped({"run_id": str(error)}) from None
    except NotSerializable as error:
        name = "context" if error.path.startswith("context") else "input"
        raise Mistyped({name: str(error)}) from None
    except ValueError as error:
        raise Mistyped({_field_of(str(error)): str(error)}) from None
    return handle.run_id


def _field_of(problem: str) -> str:
    """Return the field that an error of `submit` names first."""
    named = problem.partition(" ")[0]
    return named if named in ("queue", "key", "priority", "delay") else "run_id"


async def _like(site: Site, request: Request) -> Started | None:
    """Return the first entry of the run that the new one begins like."""
    run_id, checkpoints = request.query_params.get("like"), site.client.checkpoints
    if not run_id:
        return None
    async with checkpoints.store as store:
        entries = await read_existing(store, run_id, checkpoints.seal)
    # It raises CorruptCheckpoint for a journal with another beginning.
    fold(entries, run_id)
    return Journal(entries, b"").started


def _chosen(app: App[Any], request: Request, like: Started | None) -> AnyWorkflow | None:
    """Return the workflow that the address names; the only one of the App without a name."""
    name = request.query_params.get("workflow") or (like and like.workflow)
    if not name:
        return next(iter(app.workflows.values())) if len(app.workflows) == 1 else None
    if name not in app.recorded:
        raise Refused(f"The App of these pages has no workflow {name!r}.", 404)
    return app.recorded[name]


def _form(site: Site, workflow: AnyWorkflow, like: Started | None) -> tuple[Form, str]:
    """Return the form of a workflow, and a note if it cannot begin like another run."""
    checkpoints, note = site.client.checkpoints, ""
    values: dict[str, Any] = {"run_id": new_run_id(workflow.name)}
    if like is not None:
        values["context"] = plain_tree(like.context)
        try:
            values["input"] = recorded_input(workflow, like, checkpoints)
        except CorruptCheckpoint as error:
            note = f"The input of that run does not fit this workflow any more. {error}"
    fields = (
        input_field(workflow),
        _line("run_id", "Run id", "a repeated start with it starts nothing"),
        _line("queue", "Queue", "the queue of the workflow if it is empty"),
        _line("key", "Key", "whose run it is; the keys of a queue take turns"),
        described(
            int | None,
            name="priority",
            label="Priority",
            hint="a whole number; higher ones begin first",
        ),
        described(float | None, name="delay", label="Delay", hint="seconds until it may begin"),
        described(
            dict[str, Any], name="context", label="Context", hint="plain data as JSON", default={}
        ),
    )
    form = form_of(*fields, values=values, options=checkpoints.value_options)
    return form, note


def _line(name: str, label: str, hint: str) -> Field:
    return one_line(described(str, name=name, label=label, hint=hint))


def _page(
    app: App[Any],
    workflow: AnyWorkflow | None,
    form: Form | None,
    *,
    note: str = "",
    status: int = 200,
) -> Page:
    values = {"workflows": sorted(app.workflows), "workflow": workflow, "form": form, "note": note}
    return Page("start.html", "Start a run", values, status=status)
