"""Make the environment of workflows from the checkpoints, and close it afterwards."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, Protocol, TypeAlias, TypeVar, cast

from effectflow.checkpoint import Checkpoints
from effectflow.effects.signatures import environment_type
from effectflow.workflows import Workflow

__all__ = [
    "AnyWorkflow",
    "BadEnvironment",
    "Environment",
    "PlainEnvironment",
    "environment_without_opening",
    "missing_in",
    "opened_environment",
]

Env = TypeVar("Env")

AnyWorkflow: TypeAlias = Workflow[Any, Any, Any, Any]

Environment: TypeAlias = Callable[
    [Checkpoints],
    Env | Awaitable[Env] | AbstractContextManager[Env] | AbstractAsyncContextManager[Env],
]
"""Makes an environment: a function, an async function, or one that returns an (async) context manager."""


class BadEnvironment(Exception):
    """The environment of a workflow is missing, or could not be made. `__cause__` is the reason."""


@dataclass(frozen=True, slots=True)
class PlainEnvironment:
    """The environment of a workflow whose module defines no `environment` function."""

    checkpoints: Checkpoints

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"the environment has only checkpoints, not {name!r}: define a function "
            "`environment(checkpoints)`, which returns it, in the module of the workflow"
        )


@asynccontextmanager
async def opened_environment(
    make: Environment[Env], checkpoints: Checkpoints, source: str
) -> AsyncGenerator[Env]:
    """Make the environment; enter and leave it if it is a context manager.

    `source` says in messages what made it. Raise BadEnvironment if it cannot be made.
    """
    async with AsyncExitStack() as stack:
        yield await _entered(stack, make, checkpoints, source)


async def _entered(
    stack: AsyncExitStack, make: Callable[[Checkpoints], Any], checkpoints: Checkpoints, source: str
) -> Any:
    try:
        made = make(checkpoints)
        if inspect.isawaitable(made):
            made = await made
        if isinstance(made, AbstractAsyncContextManager):
            made = await stack.enter_async_context(cast("AbstractAsyncContextManager[Any]", made))
        elif isinstance(made, AbstractContextManager):
            made = stack.enter_context(cast("AbstractContextManager[Any]", made))
    except (Exception, SystemExit) as error:
        raise BadEnvironment(
            f"the environment could not be made: {source} raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(getattr(made, "checkpoints", None), Checkpoints):
        raise BadEnvironment(
            f"{source} should return an object, or a context manager of one, that has these "
            f"`checkpoints`; it returned {made!r}"
        )
    return made


def environment_without_opening(
    make: Callable[[Checkpoints], Any], checkpoints: Checkpoints
) -> Any:
    """Return the environment if a plain function makes it, and only the checkpoints otherwise.

    A plan runs no steps, so it opens nothing.
    """
    if inspect.iscoroutinefunction(make):
        return PlainEnvironment(checkpoints)
    made = make(checkpoints)
    opens = isinstance(made, AbstractAsyncContextManager | AbstractContextManager)
    return PlainEnvironment(checkpoints) if opens else made


def missing_in(environment: object, workflow: AnyWorkflow) -> str:
    """Return what the annotation of a workflow asks for and an environment lacks, as text; or ""."""
    needed = environment_type(inspect.unwrap(workflow.blueprint.body))
    if not isinstance(needed, type) or needed in type(environment).__mro__:
        return ""
    is_plain = isinstance(environment, PlainEnvironment)
    if hasattr(type(environment), "__getattr__") and not is_plain:
        # Only asking tells what it has, and that may do anything.
        return ""
    names = [name for name in sorted(_members(needed)) if not _has(environment, name)]
    return f"{', '.join(names)} ({needed.__name__})" if names else ""


_MISSING = object()


def _has(environment: object, name: str) -> bool:
    """Return whether there is an attribute, without running the code of a property."""
    return inspect.getattr_static(environment, name, _MISSING) is not _MISSING


def _members(kind: type) -> set[str]:
    """Return the public attributes and methods that a class or protocol declares."""
    return {
        name
        for base in kind.__mro__
        if base not in (object, Protocol, Generic)
        for name in (*inspect.get_annotations(base), *vars(base))
        if not name.startswith("_")
    }
