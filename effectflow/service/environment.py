"""Make the environment of workflows from the checkpoints, and close it afterwards."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

from effectflow.checkpoint import Checkpoints
from effectflow.effects.errors import Copyable
from effectflow.effects.resources import Made, entered
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
