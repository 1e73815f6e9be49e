"""Make a run from the beginning of another one, with other outputs or another input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from effectflow.checkpoint import Checkpoint, CorruptCheckpoint
from effectflow.checkpoint.checkpoint import fold
from effectflow.checkpoint.plan import skipped_steps
from effectflow.checkpoint.step import StepDefinition
from effectflow.checkpoint.values import MalformedValue, Tree, from_tree, of_type
from effectflow.runs.forking import Fork, changeable_steps, end_of_prefix
from effectflow.ui.actions.action import (
    MOST_SHOWN,
    Action,
    Done,
    Link,
    Offer,
    Prepared,
    Target,
    intact,
    listed,
    told,
)
from effectflow.ui.actions.steering import chosen_id, make_fork, new_id_form
from effectflow.ui.fields import Field, described
from effectflow.ui.filling import filled
from effectflow.ui.forms import Form
from effectflow.ui.inputs import input_field, made_input, recorded_input


def _changes(target: Target) -> dict[str, None]:
    """Return the steps whose outputs are to be changed."""
    return {text: None for name, text in target.options if name == "change"}


def _fork_of(target: Target) -> Fork:
    at = int(target.at) if target.at.isdecimal() else target.at or None
    return Fork(target.by, at, _changes(target))


def _is_with_input(target: Target) -> bool:
    return bool(target.wanted("input"))


async def _prepare(target: Target) -> Prepared:
    if not target.has_code:
        # It says what is missing.
        _ = target.workflow
    entries = await target.entries()
    whole = fold(entries, target.run_id)
    if _is_with_input(target):
        return _with_input(target, whole)
    if not (target.at or _changes(target)):
        return _menu(target, whole)
    end = end_of_prefix(target.run_id, entries, _fork_of(target))
    known = fold(entries[:end], target.run_id)
    kept = skipped_steps(known)
    again = [step for step in skipped_steps(whole) if step not in kept]
    facts = (
        told(
            "What happens",
            f"A new run is made of entries 1 to {end} of this one, which stays as it is. The next worker "
            "drives the new run. Its steps have other idempotency keys.",
        ),
        *listed("Kept, and not run again", [one for one in kept if one not in _changes(target)]),
        *listed("Kept, with another output", [*_changes(target)]),
        *listed("Runs again in the new run", again),
    )
    form = await _with_changes(target, new_id_form(target))
    links = _links_to_change(target, kept)
    return Prepared(facts, (_offer(form),), tuple(links))


def _offer(form: Form) -> Offer:
    hidden = (("~suggested", form.typed["run_id"]),)
    return Offer(form, "Fork the run", hidden=hidden)


def _menu(target: Target, known: Checkpoint) -> Prepared:
    steps = skipped_steps(known)[-MOST_SHOWN:]
    links = [
        Link("fork", "Begin anew with another input", (("input", "1"),)),
        Link("fork", "Begin anew with the same input", (("at", "1"),)),
    ]
    if failing := target.explanation.failing:
        links.append(Link("fork", f"Execute {failing} again", (("at", failing),)))
        links.append(Link("complete-step", f"Give {failing} an output", (("step", failing),)))
    for step in reversed(steps):
        links.append(Link("fork", f"Execute {step} again", (("at", step),)))
        links.append(Link("fork", f"Give {step} another output", (("change", step),)))
    text = "Choose up to where the new run repeats this one. The page of the run has all entries."
    return Prepared((told("Where to fork", text),), (), tuple(links))


def _links_to_change(target: Target, kept: tuple[str, ...]) -> Iterator[Link]:
    """Yield links that let more outputs be changed."""
    known = _changes(target)
    place = (("at", target.at),) if target.at else ()
    chosen = tuple(("change", step) for step in known)
    for step in [one for one in kept if one not in known][-5:]:
        query = (*place, *chosen, ("change", step))
        yield Link("fork", f"Also give {step} another output", query)


async def _with_changes(target: Target, form: Form) -> Form:
    """Return the form with the outputs that are to be changed."""
    if not _changes(target):
        return form
    async with target.place() as place:
        steps = await changeable_steps(place, target.run_id, _fork_of(target))
    typed = dict(form.typed)
    fields = list[Field]()
    for number, step in enumerate(_changes(target)):
        definition, output = steps[step]
        field = described(definition.output, name=f"change{number}", label=f"Output of {step}")
        fields.append(field)
        typed |= _shown_output(target, field, definition, output)
    return Form((*fields, *form.fields), typed)


def _shown_output(
    target: Target, field: Field, definition: StepDefinition, output: Tree
) -> Mapping[str, str]:
    types = target.checkpoints.known(definition.types)
    try:
        value = of_type(from_tree(output, types=types), definition.output)
    except MalformedValue:
        # The class has changed since.
        return {}
    return filled(field, value, target.value_options)


def _with_input(target: Target, known: Checkpoint) -> Prepared:
    field, form = input_field(target.workflow), new_id_form(target)
    try:
        value = recorded_input(target.workflow, known, target.checkpoints)
        shown = filled(field, value, target.value_options)
    except CorruptCheckpoint:
        shown = {}
    made = Form((field, *form.fields), {**form.typed, **shown})
    text = (
        "A new run begins anew with this input. The next worker drives it. This one stays as it is."
    )
    return Prepared((told("What happens", text),), (_offer(made),))


async def _act(target: Target, form: Form) -> Done:
    run_id, values = chosen_id(form, target), form.values(target.value_options)
    if _is_with_input(target):
        input = made_input(target.workflow, values["input"])
        return await make_fork(target, form, Fork(target.by, input=input, run_id=run_id))
    changes = {step: values[f"change{number}"] for number, step in enumerate(_changes(target))}
    at = _fork_of(target).at
    return await make_fork(target, form, Fork(target.by, at, changes, run_id=run_id))


FORK = Action("fork", "Fork", intact, _prepare, _act)
