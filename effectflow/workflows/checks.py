"""Check the parts of a definition: each check yields one sentence per problem, to report all at once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from effectflow.checkpoint.step import StepDefinition
from effectflow.effects import RetryPolicy
from effectflow.effects.arguments import (
    check_count,
    check_type,
    is_async,
    is_callable,
    unfinished_kind,
)
from effectflow.effects.errors import Copyable
from effectflow.effects.trails import add_note

S = TypeVar("S")
T = TypeVar("T")
N = TypeVar("N", bound=Hashable)

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""The control characters and line breaks of Unicode."""


def check_new_run_id(run_id: str | None) -> None:
    """Raise TypeError for a run id that is not text, and ValueError for one that cannot be seen.

    It applies where a caller names a run to create, or names none. Stored runs may have other ids.
    """
    if run_id is None:
        return
    check_type(run_id, str, "a run id is text")
    if not run_id.strip() or _CONTROL.search(run_id):
        raise ValueError(
            f"{run_id!r} cannot be the id of a run: use text with at least one visible character and "
            "without line breaks and other control characters, such as 'order-17'"
        )


def without_control_characters(text: str) -> str:
    """Return a text as a part of a run id."""
    return _CONTROL.sub("_", text)


def workflow_name_problems(name: object) -> Iterator[str]:
    """Yield a problem unless `name` is text that is not empty."""
    if not isinstance(name, str) or not name:
        yield f"its name must be text that is not empty, not {name!r}"


def problems_raised(check: Callable[[], object]) -> Iterator[str]:
    """Yield the ValueError that a check raises."""
    try:
        check()
    except ValueError as problem:
        yield str(problem)


def step_name_problems(name: str) -> Iterator[str]:
    """Yield a problem unless `name` can be the name of a step."""
    return problems_raised(lambda: StepDefinition(name))


def function_problems(given: object, owner: str, expected: str) -> Iterator[str]:
    """Yield a problem unless `given` is a plain function, or any other callable that is not async.

    Parameters:
        given: what the author passed.
        owner: the part that it was passed for, such as `node 'draft'`.
        expected: what that part takes, such as `a function from a state to an effect`.
    """
    if not is_callable(given):
        yield f"{owner} takes {expected}, not {given!r}"
    elif inspect.isgeneratorfunction(given):
        yield f"{owner} takes {expected}, not a generator function: decorate it with @do"
    elif is_async(given) or inspect.isasyncgenfunction(given):
        yield f"{owner} takes {expected}, not an async function"


def count_problems(given: object, name: str, *, least: int) -> Iterator[str]:
    """Yield a problem unless `given` is an int >= `least`."""
    return problems_raised(lambda: check_count(name, given, least=least))


def retry_problems(policy: object, owner: str) -> Iterator[str]:
    """Yield a problem unless `policy` is a RetryPolicy with a bound, or declared to have none."""
    if not isinstance(policy, RetryPolicy):
        yield f"the retry policy of {owner} must be a RetryPolicy, not {policy!r}"
    elif not policy.is_bounded:
        yield (
            f"the retry policy of {owner} is unbounded: add with_max_retries(n), "
            "with_max_elapsed(seconds), or without_bound()"
        )


def reachable(start: Iterable[N], edges: Iterable[tuple[N, N]]) -> set[N]:
    """Return the nodes that can be reached from `start`, including these."""
    targets: dict[N, list[N]] = {}
    for source, target in edges:
        targets.setdefault(source, []).append(target)
    found = set(start)
    todo = list(found)
    while todo:
        new = [target for target in targets.get(todo.pop(), ()) if target not in found]
        found.update(new)
        todo += new
    return found


class InvalidDefinition(Copyable, ValueError):
    """The definition of a workflow has problems. `problems` lists all of them."""

    def __init__(self, subject: str, problems: Iterable[str]) -> None:
        self.problems: tuple[str, ...] = tuple(problems)
        lines = "".join(f"\n- {problem}" for problem in self.problems)
        super().__init__(f"{subject} cannot be built:{lines}")


def holds(condition: Callable[[S], object], state: S, name: str) -> bool:
    """Return whether a pure condition, such as a guard, holds for a state. Errors name it."""
    try:
        result = condition(state)
    except Exception as defect:
        add_note(defect, f"in {name}")
        raise
    return bool(pure_result(result, name))


def pure_result(result: T, function: str) -> T:
    """Return the result of a function that must be pure. `function` names it in the error.

    Raises TypeError for an effect or an awaitable: it would count as true, and would never run.
    """
    if isinstance(result, bool):
        # The usual case, at every step. The checks below are much slower.
        return result
    kind = unfinished_kind(result)
    if kind is None:
        return result
    raise TypeError(
        f"{function} returned {kind}, but it must be a pure function of the state: run the effect in an "
        "earlier step, and keep its result in the state"
    )
