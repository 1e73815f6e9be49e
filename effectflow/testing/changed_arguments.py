"""Finds steps that change their arguments.

A resume that finds a step completed does not run it, so what it changed in an argument is seen only by
the life that ran it. A test with one life does not notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.step import StepDefinition
from effectflow.checkpoint.values import render_arguments
from effectflow.effects import nodes
from effectflow.testing.watching import Watch


class ChangedArguments(Watch):
    """Compares the digest of a step's arguments before and after each attempt.

    Attributes:
        found: what changed, as messages.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def replace_functions(self) -> None:
        from effectflow.checkpoint.run import Run

        self.around(Run, "_attempt", self._attempting)
        self.around(StepDefinition, "execute_plainly", self._executing)

    def _attempting(self, attempt: Callable[..., Any]) -> Callable[..., Any]:
        async def attempting(
            run: Any, flow: Any, step: nodes.Step, path: str, number: int, *args: Any
        ) -> Any:
            before = _arguments_of(step)
            try:
                return await attempt(run, flow, step, path, number, *args)
            finally:
                self._compare(
                    step, before, f"step {path!r} of run {run.run_id!r}, attempt {number},"
                )

        return attempting

    def _executing(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        async def executing(definition: Any, step: nodes.Step, *args: Any) -> Any:
            before = _arguments_of(step)
            try:
                return await execute(definition, step, *args)
            finally:
                self._compare(step, before, f"step {definition.name!r}")

        return executing

    def _compare(self, step: nodes.Step, before: tuple[str, str] | None, name: str) -> None:
        if before is None:
            return
        after = _arguments_of(step)
        if after is None:
            self.found.append(f"{name} changed its arguments: they cannot be encoded any more")
        elif after[0] != before[0]:
            was, now = render_arguments(before[1]), render_arguments(after[1])
            self.found.append(f"{name} changed its arguments from {was} to {now}")


def _arguments_of(step: nodes.Step) -> tuple[str, str] | None:
    """Return the digest and the preview of a step's arguments; None without an encoding."""
    try:
        return None if step.arguments is None else step.arguments()
    except NotSerializable:
        return None
