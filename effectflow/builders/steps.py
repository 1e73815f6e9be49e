"""The names and the durable steps that builders make of the functions that they are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from effectflow.checkpoint.step import Step, StepDefinition
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects.nodes import AnyEffect
from effectflow.effects.signatures import effect_types


def step_of(
    given: object, name: str, types: KnownTypes, *, output: object = None
) -> tuple[StepDefinition, Callable[[Any], AnyEffect]]:
    """Return the durable step that a builder makes of a function, and the function.

    A `@step` keeps its options. For a function without annotations, `output` is what it yields.
    """
    function = function_of(given)
    own = given.definition if isinstance(given, Step) else StepDefinition(name, output=output)
    declared = effect_types(function)[0] or own.output
    made = replace(own, name=name, types=types, output=declared)
    return made, function


def function_of(given: Any) -> Callable[[Any], AnyEffect]:
    """Return the function of a `@step`, and any other function as it is."""
    return given.function if isinstance(given, Step) else given


def name_of_function(given: object, otherwise: str) -> str:
    """Return the name of a function; `otherwise` for a lambda, and for an object without a name."""
    name = str(getattr(given, "__name__", "<lambda>"))
    return otherwise if name == "<lambda>" else name
