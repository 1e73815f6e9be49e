"""`publish`: let others see how far a run has got."""

from __future__ import annotations

from typing import Never

from effectflow.checkpoint.durable_fiber import DurableFiber
from effectflow.effects import Effect
from effectflow.effects.arguments import check_text
from effectflow.effects.nodes import Perform
from effectflow.effects.scope import Scope


def publish(key: str, value: object) -> Effect[object, Never, None]:
    """Publish a value of this run. It replaces the last value with the same key.

    Others read it with `await handle.published(key)`, or follow its changes with
    `async for change in handle`, also after the run has ended. It is durable with the next step, or a
    moment later. What a body publishes between steps is published once, also after a resume. What a step
    publishes is published by each attempt of the step, unless it begins other steps before.

    Outside a run, this does nothing.

    Parameters:
        key: what the value is about, such as "progress".
        value: plain data, or a value of a class that the output or an error of the workflow may contain.

    Example:
        >>> from effectflow import Do, publish, workflow
        >>> @workflow
        ... def copy(files: list[str]) -> Do[object, OSError, None]:
        ...     for number, file in enumerate(files):
        ...         yield from publish("progress", number / len(files))
        ...         yield from copy_file(file)
    """

    check_text("the key of what is published", key)

    async def perform(_env: object, scope: Scope) -> None:
        fiber = scope.fiber
        if isinstance(fiber, DurableFiber):
            await fiber.publish(scope, key, value, fiber.run.types)

    return Perform(perform, ("publish", key, value))
