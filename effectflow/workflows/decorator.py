"""`@workflow`: code as the workflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar, overload

from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import Effect, do
from effectflow.effects.signatures import effect_types
from effectflow.workflows.blueprint import Blueprint
from effectflow.workflows.linear import input_type
from effectflow.workflows.migrations import Migration, check_migrations
from effectflow.workflows.workflow import Workflow

__all__ = ["workflow"]

Env = TypeVar("Env", bound=HasCheckpoints)
E = TypeVar("E")
A = TypeVar("A")
Input = TypeVar("Input")


class WorkflowDecorator:
    """The result of `@workflow(...)`, before it receives the function."""

    def __init__(self, name: str | None, version: str, migrations: Mapping[int, Migration]) -> None:
        self._name = name
        self._version = version
        self._migrations = migrations

    @overload
    def __call__(
        self, body: Callable[[Input], Generator[Effect[Env, E, Any], Any, A]], /
    ) -> Workflow[Env, E, Input, A]: ...
    @overload
    def __call__(
        self, body: Callable[[Input], Effect[Env, E, A]], /
    ) -> Workflow[Env, E, Input, A]: ...
    def __call__(self, body: Callable[[Any], Any], /) -> Workflow[Any, Any, Any, Any]:
        make = do(body) if inspect.isgeneratorfunction(body) else body
        output, error = effect_types(body)
        name, version = self._name or body.__name__, self._version
        check_migrations(name, version, self._migrations)
        return Workflow(
            Blueprint(
                define=lambda: Definition(name, version, "standard"),
                body=make,
                input_type=input_type(body),
                input_types=KnownTypes.of(input_type(body)),
                output_types=KnownTypes.of(output, error),
                migrations=self._migrations,
            )
        )


@overload
def workflow(
    body: Callable[[Input], Generator[Effect[Env, E, Any], Any, A]], /
) -> Workflow[Env, E, Input, A]: ...
@overload
def workflow(body: Callable[[Input], Effect[Env, E, A]], /) -> Workflow[Env, E, Input, A]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    version: str = "1",
    migrations: Mapping[int, Migration] | None = None,
) -> WorkflowDecorator: ...
def workflow(
    body: Callable[[Any], Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "1",
    migrations: Mapping[int, Migration] | None = None,
) -> Any:
    """Make a workflow from a function of an input that returns an effect, or from a generator function.

    A resume runs the code between steps again, so it must do the same again: take time and chance from
    `now()`, `random()` and `uuid()`, whose values are recorded, and act on the world only in steps. A
    resume that reaches other steps than the recorded ones fails with DefinitionChanged.

    Parameters:
        name: the name in stores and commands; the function's name by default.
        version: change it when a code change matters to runs in progress.
        migrations: for each earlier version, a pure function from a state that it saved, as plain data,
            to that of the next version, or a `StepMigration`. It receives the input and the output of a
            run, and the output of every step. Runs of those versions then continue, upgraded.
    """
    decorator = WorkflowDecorator(name, version, migrations or {})
    return decorator if body is None else decorator(body)
