"""Check the parts of a definition: each check yields one sentence per problem, to report all at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from effectflow.checkpoint.step import StepDefinition
from effectflow.effects import RetryPolicy
from effectflow.effects.arguments import check_count, is_async, is_callable
from effectflow.effects.errors import Copyable
from effectflow.effects.signatures import returned_value

N = TypeVar("N", bound=Hashable)


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


def effect_problems(given: object, owner: str, expected: str) -> Iterator[str]:
    """Yield a problem unless `given` may be a function that returns an effect."""
    problems = [*function_problems(given, owner, expected)]
    yield from problems
    returned = returned_value(given)
    if returned is not None and not problems:
        name = getattr(given, "__qualname__", repr(given))
        yield (
            f"{owner} takes {expected}, and {name} returns {returned}: return an effect, such as "
            "pure(value), or decorate it with @effect and make the environment its first parameter"
        )


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
