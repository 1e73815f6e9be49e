"""What is wrong with the parts of a definition, as sentences: all of it, to be reported at once."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator

from effectflow.checkpoint.durable_step import StepDefinition

__all__ = [
    "count_problems",
    "function_problems",
    "refuse",
    "step_name_problems",
    "workflow_name_problems",
]


def workflow_name_problems(name: object) -> Iterator[str]:
    """Why this cannot be what stores and commands call a workflow, if it cannot."""
    if not isinstance(name, str) or not name:
        yield f"it needs a name, and is given {name!r}"


def step_name_problems(name: str) -> Iterator[str]:
    """Why this cannot be the name of a step, if it cannot."""
    try:
        StepDefinition(name)
    except ValueError as problem:
        yield str(problem)


def function_problems(given: object, whose: str, takes: str) -> Iterator[str]:
    """Why this cannot be the function that part of a definition takes, if it cannot.

    Parameters:
        given: what the author has given.
        whose: the part, such as `node 'draft'`.
        takes: what it takes, such as `a function from a state to an effect`.
    """
    if not callable(given):
        yield f"{whose} is given {given!r}: it takes {takes}"
    elif inspect.isgeneratorfunction(given):
        yield f"{whose} is given a generator function: put @do above it"
    elif _is_async(given):
        yield f"{whose} is given an async function: it takes {takes}"


def _is_async(given: object) -> bool:
    """Whether a call gives a coroutine, or an asynchronous generator, instead of doing anything."""
    return any(
        inspect.iscoroutinefunction(part) or inspect.isasyncgenfunction(part)
        for part in (given, getattr(given, "__call__", None))  # noqa: B004, as it is called
    )


def count_problems(given: object, what: str, *, least: int) -> Iterator[str]:
    """Why this cannot be a number of things, of which there are at least so many, if it cannot."""
    if type(given) is not int or given < least:
        yield f"{what} must be {least} or more, as an int, not {given!r}"


def refuse(what: str, problems: Iterable[str]) -> None:
    """Raise one ValueError that has all of the problems, if there are any."""
    lines = "".join(f"\n- {problem}" for problem in problems)
    if lines:
        raise ValueError(f"{what} cannot be built:{lines}")
