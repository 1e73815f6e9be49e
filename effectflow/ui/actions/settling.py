"""Give the outcome of a step by hand: one that is unknown, or that cannot succeed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from effectflow.checkpoint.entries import BeforeStep
from effectflow.checkpoint.step import StepDefinition, StepInfo
from effectflow.checkpoint.values.classes import is_record
from effectflow.observe.explanation import Explanation
from effectflow.runs.settling import Settlement, error_from_text, settle_step, settleable_step
from effectflow.ui.actions.action import (
    Action,
    Done,
    Fact,
    Link,
    Offer,
    Prepared,
    Target,
    not_ended,
    told,
)
from effectflow.ui.forms import Field, Form, Mistyped, described, form_of, one_line
from effectflow.ui.site import Refused


def steps_to_settle(explanation: Explanation) -> list[str]:
    """Return the steps of a run whose outcome may be given: unknown ones first."""
    steps = [one.step for one in explanation.unknown]
    steps += [explanation.failing] if explanation.failing else []
    steps += [one.path for one in explanation.open if one.kind == "step"]
    return list(dict.fromkeys(steps))


def _why_not(explanation: Explanation) -> str:
    if reason := not_ended(explanation):
        return reason
    if explanation.is_held:
        return f"A process drives the run, and must end first: pause the run. {explanation.reason}"
    if steps_to_settle(explanation):
        return ""
    return f"None of its steps is in progress or has failed. {explanation.reason}"


def _chosen_step(target: Target) -> str:
    """Return the step that the page is about; "" if people have to choose one."""
    steps = steps_to_settle(target.explanation)
    return target.step or (steps[0] if len(steps) == 1 else "")


def _facts(target: Target, step: str) -> Iterator[Fact]:
    begun = [one for one in target.entries if isinstance(one, BeforeStep) and one.step == step]
    attempts = target.checkpoint.metadata.attempts.get(step, 0)
    key = StepInfo(target.run_id, step, 1).idempotency_key
    yield Fact("Step", (step,), is_code=True)
    if begun and begun[-1].shown:
        yield Fact("Its arguments", (begun[-1].shown,), is_code=True)
    yield Fact("Its idempotency key, to look it up elsewhere", (key,), is_code=True)
    if attempts:
        yield told("Attempts", str(attempts))
    if target.explanation.failing == step and target.explanation.error:
        yield told("Its last error", target.explanation.error)
    if step in [one.step for one in target.explanation.unknown]:
        yield told(
            "Why its outcome is unknown",
            "It must not run twice, and its process ended before it told how it went. Look it up where "
            "it acts, by its idempotency key or its arguments.",
        )


_Offers: TypeAlias = Callable[[Target, str, StepDefinition], tuple[Offer, ...]]
"""Returns the forms that settle a step."""


async def _prepare(
    target: Target, action: str, offers: _Offers, what_happens: str, *, instead: tuple[str, str]
) -> Prepared:
    """Return what a page shows before a step is settled, or the steps to choose from.

    `instead` is the name of the opposite action, and what a link to it says.
    """
    step = _chosen_step(target)
    if not step:
        steps = steps_to_settle(target.explanation)
        links = tuple(Link(action, one, (("step", one),)) for one in steps)
        return Prepared((told("Which step", "Choose the step whose outcome you know:"),), (), links)
    async with target.place() as place:
        definition = await settleable_step(place, target.run_id, step)
    facts = [*_facts(target, step)]
    link = Link(*instead, (("step", step),))
    return Prepared(
        (*facts, told("What happens", what_happens)), offers(target, step, definition), (link,)
    )


async def _prepare_complete(target: Target) -> Prepared:
    text = (
        "The step is recorded as completed with this output, and is not executed. The next worker "
        "continues the run after it."
    )
    instead = "fail-step", "It did not happen: let the step fail"
    return await _prepare(target, "complete-step", _output_offers, text, instead=instead)


async def _prepare_fail(target: Target) -> Prepared:
    text = (
        "The step is recorded as failed with this error, and is not attempted again. The code of the "
        "workflow handles the failure, and its compensations run."
    )
    instead = "complete-step", "It happened: give the step its output"
    return await _prepare(target, "fail-step", _error_offers, text, instead=instead)


def _output_offers(target: Target, step: str, definition: StepDefinition) -> tuple[Offer, ...]:
    field = described(definition.output, label="Output of the step")
    form = form_of(field, options=target.value_options)
    return (Offer(form, "Complete the step", seen=_seen(target, step)),)


def _error_offers(target: Target, step: str, definition: StepDefinition) -> tuple[Offer, ...]:
    """Return a form for each error that a step declares; one for an exception of Python without any."""
    errors = definition.types.errors.items()
    offers = tuple(_error_offer(target, step, name, kind) for name, kind in errors)
    return offers or (_built_in_offer(target, step),)


def _error_offer(target: Target, step: str, name: str, kind: type[Exception]) -> Offer:
    field = _error_field(kind)
    form = form_of(field, options=target.value_options, choice=name)
    return Offer(form, "Let the step fail", title=kind.__name__, seen=_seen(target, step))


def _error_field(kind: type[Exception]) -> Field:
    if is_record(kind):
        return described(kind, label=kind.__name__)
    return described(str, label="Message", hint="what the error says")


def _built_in_offer(target: Target, step: str) -> Offer:
    kind = one_line(
        described(
            str, name="type", label="Class", hint="an exception of Python", default="RuntimeError"
        )
    )
    form = form_of(kind, _error_field(Exception), options=target.value_options)
    return Offer(form, "Let the step fail", seen=_seen(target, step))


def _seen(target: Target, step: str) -> str:
    return f"{step} {target.seen}"


async def _complete(target: Target, form: Form) -> Done:
    value = form.values(target.value_options)["value"]
    return await _settle(target, "complete-step", lambda _: value)


async def _fail(target: Target, form: Form) -> Done:
    values = form.values(target.value_options)
    value = values["value"]

    def error(definition: StepDefinition) -> Exception:
        if isinstance(value, Exception):
            return value
        try:
            return error_from_text(definition, form.choice or values["type"], value)
        except ValueError as problem:
            raise Mistyped({"value" if form.choice else "type": str(problem)}) from None

    return await _settle(target, "fail-step", error)


async def _settle(target: Target, action: str, outcome: Callable[[StepDefinition], Any]) -> Done:
    step = _chosen_step(target)
    if not step:
        raise Refused("Say which step: step=PATH")
    settlement = Settlement(step, outcome, action == "fail-step", target.by)
    async with target.place() as place:
        await settle_step(place, target.run_id, settlement)
    return Done(action, target.run_id)


COMPLETE_STEP = Action("complete-step", "Complete a step", _why_not, _prepare_complete, _complete)
FAIL_STEP = Action("fail-step", "Let a step fail", _why_not, _prepare_fail, _fail)
