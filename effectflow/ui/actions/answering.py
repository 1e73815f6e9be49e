"""Send the signals that a run waits for: approvals are answered here."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from uuid import uuid4

from effectflow.checkpoint.errors import CheckpointError
from effectflow.observe.explanation import Explanation
from effectflow.observe.mailbox import sealed_messages
from effectflow.observe.operations import Operation
from effectflow.runs.plan import awaited_types
from effectflow.service.sending import send_value
from effectflow.service.signal import Signal
from effectflow.ui.actions.action import (
    MOST_SHOWN,
    Action,
    CodeRaises,
    Done,
    Link,
    Offer,
    Prepared,
    Target,
    not_ended,
    told,
    warned,
)
from effectflow.ui.forms import Form, described, form_of

_SIGNAL = "signal "

_MOST_LINKED = 100
"""As many signals have a link, besides those that have a form."""


def signals_of(explanation: Explanation) -> dict[str, list[Operation]]:
    """Return the waits of a run for signals, by the name of the signal."""
    found: dict[str, list[Operation]] = {}
    for one in explanation.open:
        if one.kind == "wait" and one.what.startswith(_SIGNAL):
            found.setdefault(one.what.removeprefix(_SIGNAL), []).append(one)
    return found


def _why_not(explanation: Explanation) -> str:
    if reason := not_ended(explanation):
        return reason
    return "" if signals_of(explanation) else f"It waits for no signal. {explanation.reason}"


async def _prepare(target: Target) -> Prepared:
    waits = {
        name: operations
        for name, operations in signals_of(target.explanation).items()
        if (target.wanted("signal") or name) == name
        and (not target.step or target.step in [one.path for one in operations])
    }
    shown = dict(islice(waits.items(), MOST_SHOWN))
    types, problem = await _types(target, shown)
    facts = [
        told(
            "What happens",
            "The run receives the value where it waits for it, and continues: at once if a process "
            "drives it, otherwise when a worker takes it. A value that was sent stays sent.",
        )
    ]
    if problem:
        facts.append(warned("The types of the values are not known", problem))
    unread = await sealed_messages(target.checkpoints, target.run_id)
    offers: list[Offer] = []
    for name in shown:
        topic = Signal(name, object).topic
        sent = [one.number for one in unread if one.topic == topic and one.key != target.key]
        # The run would take the answer of a second person at its next wait for this signal.
        if sent:
            count = "1 value was" if len(sent) == 1 else f"{len(sent)} values were"
            text = f"{count} sent before, and the run takes what was sent first."
            facts.append(warned(f"Not taken yet: {name}", text))
        seen = f"{[(one.path, one.newest.began) for one in waits[name]]} {sent}"
        offers.append(_offer(target, name, types.get(topic, object), seen))
    others = [name for name in waits if name not in shown]
    if len(others) > _MOST_LINKED:
        facts.append(
            told(
                "Other signals",
                f"It waits for {len(others)} more. The first {_MOST_LINKED} have a link below.",
            )
        )
    links = (Link("signal", f"Send {one}", (("signal", one),)) for one in others[:_MOST_LINKED])
    return Prepared(tuple(facts), tuple(offers), tuple(links))


async def _types(
    target: Target, waits: Mapping[str, list[Operation]]
) -> tuple[Mapping[str, object], str]:
    """Return the types of the values that a run waits for, by topic; or why they are not known."""
    if not target.has_code:
        return {}, "The App of these pages does not have the code of the workflow."
    paths = [one.path for operations in waits.values() for one in operations]
    try:
        async with target.place() as place:
            types = await awaited_types(place, target.run_id, paths)
    except (CheckpointError, CodeRaises) as error:
        return {}, str(error)
    if all(Signal(name, object).topic in types for name in waits):
        return types, ""
    text = (
        "A replay does not reach the wait, because it does not run what the code awaits before it."
    )
    return types, f"{text} Type what the code expects, as JSON."


def _offer(target: Target, name: str, wanted: object, seen: str) -> Offer:
    field = described(wanted, label=name)
    form = form_of(field, options=target.value_options, choice=name)
    # Made with the page, so that a form that is submitted twice sends one value.
    return Offer(form, f"Send {name}", title=name, hidden=(("~key", uuid4().hex),), seen=seen)


async def _act(target: Target, form: Form) -> Done:
    [field] = form.fields
    [value] = form.values(target.value_options).values()
    await send_value(
        target.checkpoints,
        target.run_id,
        Signal[object](form.choice, field.annotation),
        value,
        idempotency_key=form.typed.get("~key") or uuid4().hex,
    )
    return Done("signal", target.run_id)


SIGNAL = Action("signal", "Send a signal", _why_not, _prepare, _act)
