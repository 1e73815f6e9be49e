"""Lists of steps that pass on a state."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from effectflow.checkpoint.step import Step, step
from effectflow.effects import Effect
from effectflow.effects.signatures import effect_types
from effectflow.workflows.engine import Done, Next, advance

__all__ = ["LinearStep", "chain", "step_of"]


@dataclass(frozen=True, slots=True)
class LinearStep:
    """One step of a list: the durable step, and the annotations of its states and errors."""

    step: Step[[Any], Any, Any, Any]
    annotations: tuple[object, ...]

    @property
    def name(self) -> str:
        return self.step.name


def step_of(function: Callable[[Any], Effect[Any, Any, Any]]) -> LinearStep:
    """Return the function if it is a step, otherwise a step that calls it."""
    given: Any = function
    made = cast("Step[[Any], Any, Any, Any]", given if isinstance(given, Step) else step(given))
    return LinearStep(made, (*effect_types(made.function), input_type(made.function)))


def chain(steps: Sequence[LinearStep], state: Any) -> Effect[Any, Any, Any]:
    """Return the effect that passes a state through all steps."""

    def pick(reached: tuple[int, Any]) -> Next[tuple[int, Any]] | Done:
        number, state = reached
        if number == len(steps):
            return Done(state)
        step = steps[number].step
        return Next(step(state), lambda output: (number + 1, output))

    return advance(pick, (0, state), ("steps", *(part.name for part in steps)))


def input_type(function: Callable[..., Any]) -> object:
    """Return the annotation of a function's first parameter, or None without one."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        # A name that exists only for type checkers: its classes count as undeclared.
        return None
    hints.pop("return", None)
    return next(iter(hints.values()), None)
