"""Find steps that change their arguments. The pytest plugin does this for each test, if asked."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Self, TypeAlias
from unittest import mock

from effectflow.builders.mapreduce import _job
from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.step import StepDefinition
from effectflow.checkpoint.step_execution import StepExecution
from effectflow.checkpoint.values import (
    NO_OPTIONS,
    ValueOptions,
    encode_arguments,
    render_arguments,
)
from effectflow.effects import nodes

_Encode: TypeAlias = Callable[[ValueOptions], tuple[str, str]]
"""Returns the digest and the preview of arguments."""


class ChangedArguments:
    """Finds steps that change their arguments, by digests before and after each attempt.

    A resume does not run a completed step, so only the life that ran it sees what it changed in an
    argument. A test with one life does not notice. On enter, functions of the library are replaced until
    the exit, so that production code pays nothing for it.

    Attributes:
        found: a message for each change.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._items: weakref.WeakKeyDictionary[Any, _Encode] = weakref.WeakKeyDictionary()
        self._mapped: _Encode | None = None
        self._replaced = ExitStack()

    def __enter__(self) -> Self:
        self._replace(StepExecution, "execute", self._attempting)
        self._replace(StepDefinition, "execute_plainly", self._executing_plainly)
        self._replace(_job.ItemWork, "mapped", self._mapping)
        self._replace(_job, "durable", self._creating)
        return self

    def __exit__(self, *_: object) -> None:
        self._replaced.close()

    def _replace(self, owner: Any, name: str, around: Callable[[Any], Callable[..., Any]]) -> None:
        wrapper = around(getattr(owner, name))
        self._replaced.enter_context(mock.patch.object(owner, name, wrapper))

    def _attempting(self, attempt: Any) -> Callable[..., Any]:
        async def comparing(execution: Any, number: int, *more: Any, **options: Any) -> Any:
            path, run_id = execution.path, execution.run.run_id
            name = f"step {path!r} of run {run_id!r}, attempt {number},"
            with self._compared(self._arguments_of(execution.step), name):
                return await attempt(execution, number, *more, **options)

        return comparing

    def _executing_plainly(self, execute: Any) -> Callable[..., Any]:
        async def comparing(definition: Any, step: nodes.Step, env: Any, scope: Any) -> Any:
            with self._compared(self._arguments_of(step), f"step {definition.name!r}"):
                return await execute(definition, step, env, scope)

        return comparing

    def _arguments_of(self, step: nodes.Step) -> _Encode | None:
        return step.arguments or self._items.get(step)

    def _mapping(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def mapping(work: Any, reopening: int) -> Any:
            name = work.job.map_step.name
            self._mapped = partial(encode_arguments, {"item": work.item}, path=name)
            try:
                return make(work, reopening)
            finally:
                self._mapped = None

        return mapping

    def _creating(self, create: Callable[..., Any]) -> Callable[..., Any]:
        """Remember the item of a job's step, which records none if the function is not a step."""

        def creating(*args: Any) -> Any:
            step = create(*args)
            if self._mapped is not None:
                self._items[step] = self._mapped
            return step

        return creating

    @contextmanager
    def _compared(self, encode: _Encode | None, name: str) -> Generator[None]:
        """Note if arguments change within the block."""
        before = _encoded(encode)
        try:
            yield
        finally:
            if before is not None:
                self._compare(before, _encoded(encode), name)

    def _compare(self, before: tuple[str, str], after: tuple[str, str] | None, name: str) -> None:
        if after is None:
            self.found.append(f"{name} changed its arguments: they cannot be encoded any more")
        elif after[0] != before[0]:
            was, now = render_arguments(before[1]), render_arguments(after[1])
            self.found.append(f"{name} changed its arguments from {was} to {now}")


def _encoded(encode: _Encode | None) -> tuple[str, str] | None:
    """Return the digest and the preview of arguments; None without an encoding."""
    try:
        return None if encode is None else encode(NO_OPTIONS)
    except NotSerializable:
        return None
