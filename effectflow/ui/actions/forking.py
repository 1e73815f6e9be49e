"""Make a run from another one: from its beginning with other outputs, or again from its input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from effectflow.checkpoint import Checkpoint, CorruptCheckpoint, RunConflict, read_checkpoint
from effectflow.checkpoint.checkpoint import fold
from effectflow.checkpoint.journal_reader import Journal
from effectflow.checkpoint.plan import skipped_steps
from effectflow.checkpoint.step import StepDefinition
from effectflow.checkpoint.values import MalformedValue, Tree, from_tree, of_type
from effectflow.runs.forking import Fork, changeable_steps, end_of_prefix, fork_run, forked_entries
from effectflow.runs.run_ids import new_run_id
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
from effectflow.ui.forms import (
    Field,
    Form,
    Mistyped,
    checked_id,
    described,
    filled,
    form_of,
    input_field,
    made_input,
    one_line,
)


def _new_id_form(target: Target) -> Form:
    """Return the form that asks for the id of a new run, and suggests one."""
    field = one_line(
        described(str, name="run_id", label="Id of the new run", hint="it must be new")
    )
    suggested = new_run_id(target.workflow.name)
    return form_of(field, values={"run_id": suggested}, options=target.value_options)


async def _make_fork(target: Target, form: Form, fork: Fork) -> Done:
    """Make a run from another one. A form that is submitted twice makes it once."""
    assert fork.run_id is not None
    async with target.place() as place:
        try:
            await fork_run(place, target.run_id, fork)
        except RunConflict as error:
            if not await _is_made(target, form, fork.run_id):
                raise Mistyped({"run_id": str(error)}) from None
            return Done("again", fork.run_id)
    return Done("fork", fork.run_id)


async def _is_made(target: Target, form: Form, run_id: str) -> bool:
    """Return whether a run is the one that this form made before, with the id that it suggested."""
    if form.typed.get("~suggested") != run_id:
        return False
    store, seal = target.checkpoints.store, target.checkpoints.seal
    async with store:
        made = await read_checkpoint(store, run_id, seal)
    return made.forked_from.rpartition("@")[0] == target.run_id


def _changes(target: Target) -> dict[str, None]:
    """Return the steps whose outputs are to be changed."""
    return {text: None for name, text in target.options if name == "change"}


def _fork_of(target: Target) -> Fork:
    is_number = target.at.isdecimal() and len(target.at) < 16
    at = int(target.at) if is_number else target.at or None
    return Fork(target.by, at, _changes(target))


def _is_with_input(target: Target) -> bool:
    return bool(target.wanted("input"))


async def _prepare_fork(target: Target) -> Prepared:
    if not target.has_code:
        # It says what is missing.
        _ = target.workflow
    entries, whole = target.entries, target.checkpoint
    if _is_with_input(target):
        return await _with_input(target)
    if not (target.at or _changes(target)):
        return _menu(target, whole)
    end = await _end_of(target)
    kept = skipped_steps(fold(entries[:end], target.run_id))
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
    form = await _with_changes(target, _new_id_form(target))
    links = _links_to_change(target, kept)
    return Prepared(facts, (_offer(form),), tuple(links))


async def _end_of(target: Target) -> int:
    """Return the number of the last entry that the fork has of the run. Raise ChangeRejected.

    Without other outputs, raise also what keeps the code from continuing there, which a replay tells.
    """
    if _changes(target):
        return end_of_prefix(target.run_id, target.entries, _fork_of(target))
    # What it raises names the run that people know.
    fork = replace(_fork_of(target), run_id=target.run_id)
    async with target.place() as place:
        entries = await forked_entries(place, target.run_id, fork)
    return int(Journal(entries, b"").started.forked_from.rpartition("@")[2])


def _offer(form: Form, button: str = "Fork the run") -> Offer:
    hidden = (("~suggested", form.typed["run_id"]),)
    return Offer(form, button, hidden=hidden)


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
    history = (("id", target.run_id),)
    links.append(Link("/run/history", "After another entry: choose it in the history", history))
    text = "Choose up to where the new run repeats this one."
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


async def _with_input(target: Target) -> Prepared:
    field, form = input_field(target.workflow), _new_id_form(target)
    try:
        shown = filled(field, target.input, target.value_options)
    except CorruptCheckpoint:
        shown = {}
    made = Form((field, *form.fields), {**form.typed, **shown})
    text = (
        "A new run begins anew with this input. The next worker drives it. This one stays as it is."
    )
    return Prepared((told("What happens", text),), (_offer(made),))


async def _fork(target: Target, form: Form) -> Done:
    values = form.values(target.value_options)
    run_id = checked_id(values["run_id"])
    if _is_with_input(target):
        input = made_input(target.workflow, values["input"])
        return await _make_fork(target, form, Fork(target.by, input=input, run_id=run_id))
    changes = {step: values[f"change{number}"] for number, step in enumerate(_changes(target))}
    at = _fork_of(target).at
    return await _make_fork(target, form, Fork(target.by, at, changes, run_id=run_id))


async def _prepare_rerun(target: Target) -> Prepared:
    form = _new_id_form(target)
    facts = (
        told(
            "What happens",
            "A new run begins with the same input. This one stays as it is. The next worker drives the "
            "new run, and all of its steps are executed.",
        ),
    )
    like = (("like", target.run_id),)
    links = (
        Link("fork", "Begin after a certain step: fork the run"),
        Link("/start", "Change the input, the queue or the key first: start one like this", like),
    )
    return Prepared(facts, (_offer(form, "Run it again"),), links)


async def _rerun(target: Target, form: Form) -> Done:
    run_id = checked_id(form.values(target.value_options)["run_id"])
    return await _make_fork(target, form, Fork(target.by, run_id=run_id))


FORK = Action("fork", "Fork", intact, _prepare_fork, _fork)
RERUN = Action("rerun", "Run again", intact, _prepare_rerun, _rerun)
