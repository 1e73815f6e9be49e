"""`Iterative`: the same work again and again, each round a durable step, until it changes no more."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.durable_step import StepDefinition, durable
from effectflow.checkpoint.step import effect_types
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import Effect, do, suspend
from effectflow.workflows.answers import answered
from effectflow.workflows.blueprint import Blueprint
from effectflow.workflows.checks import (
    count_problems,
    function_problems,
    refuse,
    workflow_name_problems,
)
from effectflow.workflows.flow import flow
from effectflow.workflows.linear import input_type
from effectflow.workflows.workflow import Workflow

__all__ = ["Iterative", "IterativeResult"]

Env = TypeVar("Env", bound=HasCheckpoints, contravariant=True)
E = TypeVar("E", covariant=True)
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)

AnyEffect = Effect[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class IterativeResult(Generic[S_co]):
    """What an iterative workflow gives.

    Attributes:
        value: what the last round gave.
        rounds: how many there were.
        is_converged: whether the convergence test ended it, and not the bound.
    """

    value: S_co
    rounds: int
    is_converged: bool


class Iterative(Workflow[Env, E, S, IterativeResult[S]], Generic[Env, E, S]):
    """A workflow that makes a better value of the one before, round after round.

    Each round is a durable step, `round`, `round#2`, ...: a resume goes on in the round that was cut
    off. What a round is made of is durable as well, so a round may be a whole map-reduce job
    (`job.body(...)`), of which a resume runs only what was not done.

    Parameters:
        name: the workflow's name.
        round: makes the effect that yields the next value. Its annotations say what values are made of.
        converged: whether the value after a round is as good as that before it. Pure.
        max_rounds: after how many rounds it ends in any case, 1 or more.
        version: change it when a change of the code matters to runs that are under way.

    Example:
        >>> from dataclasses import dataclass
        >>> from typing import Never
        >>> from effectflow import Checkpoints, Effect, Iterative, pure
        >>> from effectflow.stores import MemoryStore
        >>> def better(x: float) -> Effect[object, Never, float]:
        ...     return pure((x + 2 / x) / 2)
        >>> root_of_two = Iterative(
        ...     "root of two",
        ...     better,
        ...     converged=lambda before, after: abs(after - before) < 1e-6,
        ...     max_rounds=20,
        ... )
        >>> @dataclass
        ... class App:
        ...     checkpoints: Checkpoints
        >>> app = App(Checkpoints(MemoryStore()))
        >>> root_of_two.start(1.0).run_sync(app)
        <Success: IterativeResult(value=1.414213562373095, rounds=5, is_converged=True)>
    """

    def __init__(
        self,
        name: str,
        round: Callable[[S], Effect[Env, E, S]],
        *,
        converged: Callable[[S, S], bool],
        max_rounds: int,
        version: str = "1",
    ) -> None:
        refuse(
            f"iterative workflow {name!r}",
            [
                *workflow_name_problems(name),
                *function_problems(round, "`round`", "a function from a value to an effect"),
                *function_problems(converged, "`converged`", "a function of two values"),
                *count_problems(max_rounds, "max_rounds", least=1),
            ],
        )
        output, error = effect_types(round)
        types = KnownTypes.of(IterativeResult, output, error, input_type(round))
        step = StepDefinition("round", types)
        definition = Definition(name, version, "iterative", (step.name,))

        @do
        def body(value: Any) -> Generator[AnyEffect, Any, IterativeResult[Any]]:
            for number in range(1, max_rounds + 1):
                before = value
                work = flow(suspend(partial(round, before)), ("round", number))
                value = yield durable(step, work)
                if answered(converged(before, value), f"`converged` of {name!r}"):
                    return IterativeResult(value, number, True)
            return IterativeResult(value, max_rounds, False)

        super().__init__(
            Blueprint(
                define=lambda: definition,
                body=body,
                input_type=input_type(round),
                input_types=types,
                output_types=types,
            )
        )
