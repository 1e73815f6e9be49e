"""`effectflow pauses`: show, add and remove pauses of queues, workflows and schedules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer

from effectflow.checkpoint.checkpoint import iso_time
from effectflow.cli.access import Access, ServiceOption
from effectflow.cli.command import Answer, command
from effectflow.cli.options import BadUse, ByOption
from effectflow.cli.render import when
from effectflow.service.client import Client
from effectflow.service.pauses import PAUSED_KINDS


@command(ServiceOption)
async def pauses(
    access: Access,
    pause: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND:NAME",
            help="Pause queue:NAME, workflow:NAME or schedule:NAME. Repeatable.",
        ),
    ] = None,
    unpause: Annotated[
        list[str] | None, typer.Option(metavar="KIND:NAME", help="Let it go on. Repeatable.")
    ] = None,
    by: ByOption = None,
) -> Answer:
    """Show which queues, workflows and schedules are paused; pause them, or let them go on.

    Workers follow within a second: they take no more runs of what is paused. Runs in progress go on until
    they wait or end.
    """
    client = Client(access.checkpoints, by=by)
    to_pause, to_unpause = _named(pause or ()), _named(unpause or ())
    for kind, name in to_pause:
        await client.pause(**{kind: name})
    for kind, name in to_unpause:
        await client.unpause(**{kind: name})
    found = await client.pauses()
    lines = [f"{one.kind} {one.name} is paused by {one.by} since {when(one.at)}" for one in found]
    tree = [{**asdict(one), "at": iso_time(one.at)} for one in found]
    problems = _unknown(access.app, [*to_pause, *to_unpause])
    return Answer(tree, lines or ["Nothing is paused."], problems)


def _unknown(app: str | None, given: Iterable[tuple[str, str]]) -> Iterable[str]:
    """Yield a warning for each name that the App does not have: it may be misspelt."""
    # Imported late, because most calls name no App.
    from effectflow.cli.app_loader import find_app

    known = None if app is None else find_app(app)
    if known is None:
        return
    names = {
        "workflow": {*known.recorded},
        "queue": {*known.recorded, *known.queues},
        "schedule": {one.name for one in known.schedules},
    }
    for kind, name in given:
        if name not in names[kind]:
            have = ", ".join(sorted(names[kind])) or "none"
            yield f"The App {app!r} has no {kind} {name!r}; it has: {have}"


def _named(given: Iterable[str]) -> list[tuple[str, str]]:
    """Return each as a kind and a name. Raise BadUse for anything else."""
    found: list[tuple[str, str]] = []
    for text in given:
        kind, _, name = text.partition(":")
        if kind not in PAUSED_KINDS or not name:
            known = ", ".join(f"{one}:NAME" for one in PAUSED_KINDS)
            raise BadUse(f"{text!r} is none of {known}, such as queue:reports")
        found.append((kind, name))
    return found
