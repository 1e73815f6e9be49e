"""`@workflow`: code as a workflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, Never, Protocol, TypeAlias, TypeVar, overload

from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import Effect, do
from effectflow.effects.arguments import check_function, is_async, misfit_of
from effectflow.effects.functions import checked_errors
from effectflow.effects.signatures import effect_types, environment_type, input_type, parameters_of
from effectflow.effects.type_variables import X1, X2, X3, X4, X5, X6, X7, X8, ErrorClasses
from effectflow.runs.blueprint import Blueprint, former_names
from effectflow.runs.migrations import Migration, check_migrations
from effectflow.runs.workflow import Workflow

Env = TypeVar("Env", bound=HasCheckpoints)
E = TypeVar("E")
Input = TypeVar("Input")
Out = TypeVar("Out")
X = TypeVar("X", bound=Exception, covariant=True)

Body: TypeAlias = Callable[[Input], Generator[Effect[Env, E, Any], Any, Out] | Effect[Env, E, Out]]
"""The code of a workflow: a function that returns an effect, or a generator function."""

BodyWithoutInput: TypeAlias = Callable[
    [], Generator[Effect[Env, E, Any], Any, Out] | Effect[Env, E, Out]
]
"""The same without an input."""


class WorkflowDecorator(Protocol):
    """The result of `@workflow(...)`, before it receives the function."""

    @overload
    def __call__(
        self, body: Callable[[Input], Coroutine[Any, Any, Out]], /
    ) -> Workflow[HasCheckpoints, Never, Input, Out]: ...
    @overload
    def __call__(
        self, body: Callable[[], Coroutine[Any, Any, Out]], /
    ) -> Workflow[HasCheckpoints, Never, None, Out]: ...
    @overload
    def __call__(
        self, body: Body[Input, HasCheckpoints, E, Out], /
    ) -> Workflow[HasCheckpoints, E, Input, Out]: ...
    @overload
    def __call__(self, body: Body[Input, Env, E, Out], /) -> Workflow[Env, E, Input, Out]: ...
    @overload
    def __call__(
        self, body: BodyWithoutInput[HasCheckpoints, E, Out], /
    ) -> Workflow[HasCheckpoints, E, None, Out]: ...
    @overload
    def __call__(self, body: BodyWithoutInput[Env, E, Out], /) -> Workflow[Env, E, None, Out]: ...


class CoroutineWorkflowDecorator(Protocol[X]):
    """The result of `@workflow(errors=...)`, before it receives the async function."""

    @overload
    def __call__(
        self, body: Callable[[Input], Coroutine[Any, Any, Out]], /
    ) -> Workflow[HasCheckpoints, X, Input, Out]: ...
    @overload
    def __call__(
        self, body: Callable[[], Coroutine[Any, Any, Out]], /
    ) -> Workflow[HasCheckpoints, X, None, Out]: ...


# Bodies that need nothing come first: mypy infers `object` for them, which has no checkpoints.
@overload
def workflow(
    body: Body[Input, HasCheckpoints, E, Out], /
) -> Workflow[HasCheckpoints, E, Input, Out]: ...
@overload
def workflow(body: Body[Input, Env, E, Out], /) -> Workflow[Env, E, Input, Out]: ...
@overload
def workflow(
    body: BodyWithoutInput[HasCheckpoints, E, Out], /
) -> Workflow[HasCheckpoints, E, None, Out]: ...
@overload
def workflow(body: BodyWithoutInput[Env, E, Out], /) -> Workflow[Env, E, None, Out]: ...
@overload
def workflow(
    body: Callable[[Input], Coroutine[Any, Any, Out]], /
) -> Workflow[HasCheckpoints, Never, Input, Out]: ...
@overload
def workflow(
    body: Callable[[], Coroutine[Any, Any, Out]], /
) -> Workflow[HasCheckpoints, Never, None, Out]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    aliases: Sequence[str] = (),
    version: str = "1",
    migrations: Mapping[int, Migration] | None = None,
) -> WorkflowDecorator: ...
@overload
def workflow(
    *,
    errors: ErrorClasses[X1, X2, X3, X4, X5, X6, X7, X8],
    name: str | None = None,
    aliases: Sequence[str] = (),
    version: str = "1",
    migrations: Mapping[int, Migration] | None = None,
) -> CoroutineWorkflowDecorator[X1 | X2 | X3 | X4 | X5 | X6 | X7 | X8]: ...
@overload
def workflow(
    *,
    errors: tuple[type[X], ...],
    name: str | None = None,
    aliases: Sequence[str] = (),
    version: str = "1",
    migrations: Mapping[int, Migration] | None = None,
) -> CoroutineWorkflowDecorator[X]: ...
def workflow(
    body: Callable[..., Any] | None = None,
    /,
    *,
    errors: Any = None,
    name: str | None = None,
    aliases: Sequence[str] = (),
    version: str = "1",
    migrations: Mapping[int, Migration] | None = None,
) -> Any:
    """Make a workflow from a function of an input, whose body is durable.

    It is an async function that awaits effects, a generator function as for `@do`, or a function that
    returns an effect. Without a parameter, the workflow is started without an input.

    A resume runs the code between steps again, so it must do the same again: take time and chance from
    `now()`, `random()` and `uuid()`, whose values are recorded, and act on the world only in steps. A
    resume that reaches other steps than the recorded ones fails with DefinitionChanged.

    Parameters:
        errors: the class of the exceptions that are failures of an async function, or a tuple of classes.
            Other functions declare theirs in their annotation.
        name: the name in stores and commands; the function's name by default.
        aliases: the former names of a renamed workflow, the oldest first. It continues their runs, which
            keep these names in stores and commands. Runs that have called or spawned it continue, too.
        version: change it when a code change matters to runs in progress.
        migrations: for each earlier version, a pure function from a state that it saved, as plain data,
            to that of the next version, or a `StepMigration`. It receives the input and the output of a
            run, and the output of every step. Runs of those versions then continue, upgraded.
    """

    declared = None if errors is None else checked_errors("@workflow", errors)

    def decorate(body: Callable[..., Any]) -> Workflow[Any, Any, Any, Any]:
        made = body
        if declared is not None:
            made = do(errors=declared)(body)
        elif inspect.isgeneratorfunction(body) or is_async(body):
            made = do(body)
        check_function(made, "@workflow", "write @effect below @workflow, or use @do")
        takes_input = _takes_input(body)
        chosen = name or getattr(body, "__name__", None)
        if chosen is None:
            raise TypeError(f"{body!r} has no name: write @workflow(name=...)")
        former = former_names(chosen, aliases)
        check_migrations(chosen, version, migrations or {})

        def describe() -> Blueprint:
            output, error = effect_types(made)
            given = input_type(made) if takes_input else type(None)
            return Blueprint(
                Definition(chosen, version, "standard"),
                body=made if takes_input else lambda _: made(),
                input_type=given,
                input_types=KnownTypes.of(given),
                output_types=KnownTypes.of(output, error),
                output_type=output,
                migrations=migrations or {},
                environment_types=lambda: [environment_type(made)],
                aliases=former,
            )

        return Workflow(describe(), describe)

    return decorate if body is None else decorate(body)


def _takes_input(body: Callable[..., Any]) -> bool:
    """Return whether a body takes an input. Raise TypeError for more parameters, and for a method."""
    names = parameters_of(body)
    if not names and misfit_of(body, (), {}) is None:
        return False
    if names[:1] in (["self"], ["cls"]) or misfit_of(body, (None,), {}) is not None:
        name = getattr(body, "__qualname__", None) or repr(body)
        raise TypeError(
            f"@workflow takes a function of one input or none, not {name}({', '.join(names)}): use a "
            "dataclass for several values, and a function in place of a method"
        )
    return True
