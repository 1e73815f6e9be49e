"""Make the environment of workflows from the checkpoints, and close it afterwards."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias, TypeVar, get_origin

from effectflow.checkpoint import Checkpoints
from effectflow.effects.errors import Copyable
from effectflow.effects.resources import Made, entered
from effectflow.effects.signatures import meaning_of
from effectflow.runs import Workflow

Env = TypeVar("Env")

AnyWorkflow: TypeAlias = Workflow[Any, Any, Any, Any]


class BadEnvironment(Copyable, Exception):
    """The environment of a workflow is missing, or could not be made. `__cause__` is the reason."""


@asynccontextmanager
async def made_environment(
    make: Callable[[Checkpoints], Made[Env]], checkpoints: Checkpoints, source: str
) -> AsyncGenerator[Env]:
    """Make the environment. If it is a context manager, enter and leave it.

    `source` names what made it in messages. Raise BadEnvironment if it cannot be made.
    """
    async with AsyncExitStack() as stack:
        yield await _entered(stack, make, checkpoints, source)


async def _entered(
    stack: AsyncExitStack, make: Callable[[Checkpoints], Any], checkpoints: Checkpoints, source: str
) -> Any:
    try:
        made = await entered(make(checkpoints), stack)
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


def needs_of(workflow: AnyWorkflow) -> tuple[frozenset[str], str]:
    """Return the attributes of the environment that the steps and bodies of a workflow declare to need,
    besides `checkpoints`, and the names of the classes that declare them."""
    kinds = [
        kind
        for kind in map(_class_of, workflow.blueprint.environment_types())
        if kind is not None and _members(kind) - {"checkpoints"}
    ]
    names = frozenset[str]().union(*map(_members, kinds)) - {"checkpoints"}
    return names, ", ".join(dict.fromkeys(kind.__name__ for kind in kinds))


def missing_in(environment: object, workflow: AnyWorkflow) -> str:
    """Return what a workflow declares to need and the environment lacks, as text; "" if nothing."""
    if hasattr(type(environment), "__getattr__"):
        # Only reading an attribute shows whether it exists, and that may run any code.
        return ""
    names, declared = needs_of(workflow)
    missing = [name for name in sorted(names) if not _has(environment, name)]
    return f"{', '.join(missing)} ({declared})" if missing else ""


_MISSING = object()


def _has(environment: object, name: str) -> bool:
    """Return whether an attribute exists, without running the code of a property."""
    return inspect.getattr_static(environment, name, _MISSING) is not _MISSING


def _class_of(annotation: object) -> type | None:
    """Return the class or protocol that an annotation names; None for Any, a type variable or a union."""
    meant = meaning_of(annotation) or annotation
    kind = get_origin(meant) or meant
    return kind if isinstance(kind, type) else None


def _members(kind: type) -> set[str]:
    """Return the public attributes and methods that a class or protocol declares."""
    return {
        name
        for base in kind.__mro__
        if base.__module__ not in ("builtins", "typing", "abc")
        for name in (*inspect.get_annotations(base), *vars(base))
        if not name.startswith("_")
    }
