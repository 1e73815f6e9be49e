"""The page of an action on a run: what will happen, the form, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from effectflow.checkpoint.errors import CheckpointError, RunNotFound, StoreUnavailable
from effectflow.checkpoint.store import CANCEL
from effectflow.observe.mailbox import read_requests
from effectflow.ui.actions import ACTIONS, offered
from effectflow.ui.actions.action import Action, Offer, Prepared, Target, read_target, warned
from effectflow.ui.formatting import utc
from effectflow.ui.forms import Form, Mistyped
from effectflow.ui.request_values import run_id_of, submitted
from effectflow.ui.site import Page, Refused, Site


async def show_action(site: Site, request: Request) -> Page:
    """Show what an action would do, and its form."""
    action, target = await _asked(site, request)
    if why_not := action.why_not(target.explanation):
        return _page(action, target, Prepared(), problem=why_not, status=409)
    try:
        return _page(action, target, await _prepared(action, target))
    except (RunNotFound, StoreUnavailable):
        raise
    except CheckpointError as error:
        return _page(action, target, Prepared(), problem=str(error), status=409)
    except Refused as error:
        return _page(action, target, Prepared(), problem=str(error), status=error.status)


async def do_action(site: Site, request: Request) -> Page | Response:
    """Do what a form asks for, and show the run; or show the form again, with what is wrong."""
    action, target = await _asked(site, request)
    if action.act is None:
        raise Refused("This page only shows something.", 405)
    typed = dict(await submitted(request))
    if why_not := action.why_not(target.explanation):
        return _lost(action, target, typed, why_not)
    target = replace(target, key=typed.get("~key", ""))
    try:
        prepared = await _prepared(action, target)
    except (CheckpointError, Refused) as error:
        return _lost(action, target, typed, str(error))
    offer = _chosen(prepared, typed)
    form = replace(offer.form, typed=typed)
    if typed.get("~seen", offer.mark) != offer.mark:
        shown = _with_form(prepared, offer, form)
        return _page(action, target, shown, problem=_CHANGED, status=409)
    if (changed := form.changed(target.value_options)) is not None:
        return _page(action, target, _with_form(prepared, offer, changed))
    try:
        done = await action.act(target, form)
    except Mistyped as error:
        shown = _with_form(prepared, offer, replace(form, problems=error.problems))
        return _page(action, target, shown, problem="Nothing was done yet: see below.", status=422)
    except (CheckpointError, Refused) as error:
        shown = _with_form(prepared, offer, form)
        return _page(action, target, shown, problem=str(error), status=409)
    if not done.run_id:
        return site.redirect(request, "/", done=done.notice)
    return site.redirect(request, "/run", id=done.run_id, done=done.notice)


async def _asked(site: Site, request: Request) -> tuple[Action, Target]:
    site.changeable()
    action = ACTIONS.get(request.path_params["name"])
    if action is None:
        raise Refused("There is no such action.", 404)
    query = request.query_params
    target = await read_target(
        site,
        run_id_of(request),
        step=query.get("step", ""),
        at=query.get("at", ""),
        options=tuple((name, text) for name, text in query.multi_items()),
    )
    return action, target


async def _prepared(action: Action, target: Target) -> Prepared:
    """Return what a page shows before an action, with a request that comes before it."""
    prepared = await action.prepare(target)
    for one in await read_requests(target.checkpoints, target.run_id):
        if one.message.topic == CANCEL:
            text = (
                f"{one.by} asked for it at {utc(one.message.sent_at)}. The next worker carries it "
                "out first, also if the run is paused."
            )
            fact = warned("It was asked to cancel itself", text)
            return replace(prepared, facts=(fact, *prepared.facts))
    return prepared


_CHANGED = (
    "Nothing was done: somebody else has acted, or the run has gone on since you saw this page. It shows "
    "what would happen now."
)


def _chosen(prepared: Prepared, typed: Mapping[str, str]) -> Offer:
    """Return the form that was submitted. Raise Refused if the page has it no longer."""
    for offer in prepared.offers:
        if offer.form.choice == typed.get("~choice", ""):
            return offer
    raise Refused("The run has gone on meanwhile, and this is not possible any more.", 409)


def _with_form(prepared: Prepared, offer: Offer, form: Form) -> Prepared:
    """Return what a page shows, with this form as it was submitted."""
    hidden = tuple((name, form.typed.get(name, text)) for name, text in offer.hidden)
    again = replace(offer, form=form, hidden=hidden)
    offers = tuple(again if one is offer else one for one in prepared.offers)
    return replace(prepared, offers=offers)


def _lost(action: Action, target: Target, typed: Mapping[str, str], problem: str) -> Page:
    """Return the page of an action that is not possible any more, with what was typed."""
    kept = {name: text for name, text in typed.items() if text and not name.startswith("~")}
    return _page(action, target, Prepared(), problem=problem, status=409, kept=kept)


def _page(
    action: Action,
    target: Target,
    prepared: Prepared,
    *,
    problem: str = "",
    status: int = 200,
    kept: Mapping[str, str] | None = None,
) -> Page:
    next_actions = offered(target.explanation) if not prepared.offers else ()
    values = {
        "action": action,
        "target": target,
        "prepared": prepared,
        "problem": problem,
        "kept": kept or {},
        "next_actions": [one for one in next_actions if one is not action] if problem else [],
    }
    return Page("action.html", f"{action.label}: {target.run_id}", values, status=status)
