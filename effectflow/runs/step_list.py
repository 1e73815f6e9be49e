"""A list of steps as a workflow: `Workflow.of_steps`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.step import Step, step
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import Effect
from effectflow.effects.signatures import effect_types, environment_type, input_type
from effectflow.runs.blueprint import Blueprint, former_names
from effectflow.runs.migrations import Migration, check_migrations, is_of_outermost_flow
from effectflow.runs.step_loop import Done, Next, advance


def blueprint_of_steps(
    name: str,
    steps: Sequence[Callable[[Any], Effect[Any, Any, Any]]],
    version: str,
    migrations: Mapping[int, Migration],
    aliases: Sequence[str] = (),
) -> Blueprint:
    """Return the blueprint of a list of steps; see `Workflow.of_steps`."""
    made = [_as_step(part) for part in steps]
    names = [part.name for part in made]
    if not names:
        raise ValueError(f"workflow {name!r} has no steps")
    twice = sorted({part for part in names if names.count(part) > 1})
    if twice:
        raise ValueError(f"workflow {name!r} has two steps named {', '.join(twice)}")
    check_migrations(name, version, migrations)
    functions = [part.function for part in made]
    types = KnownTypes.of(
        *(kind for each in functions for kind in (*effect_types(each), input_type(each)))
    )

    def pick(reached: tuple[int, Any]) -> Next[tuple[int, Any]] | Done:
        number, state = reached
        if number == len(made):
            return Done(state)
        return Next(made[number](state), lambda output: (number + 1, output))

    return Blueprint(
        Definition(name, version, "standard", tuple(names)),
        body=lambda state: advance(pick, (0, state), ("steps", *names)),
        input_type=input_type(functions[0]),
        input_types=types,
        output_types=types,
        output_type=effect_types(functions[-1])[0],
        migrations=migrations,
        gives_state=is_of_outermost_flow,
        environment_types=lambda: [environment_type(each) for each in functions],
        aliases=former_names(name, aliases),
        renamed_steps={was: part.name for part in made for was in part.definition.was},
    )


def _as_step(function: Callable[[Any], Effect[Any, Any, Any]]) -> Step[[Any], Any, Any, Any]:
    """Return a step that calls the function, or is a copy of it."""
    given: Any = function
    return copy(given) if isinstance(function, Step) else step(given)
