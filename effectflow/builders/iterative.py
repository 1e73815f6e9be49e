"""`Iterative`: repeat the same durable step until its value converges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

from effectflow.builders.checks import (
    InvalidDefinition,
    count_problems,
    effect_problems,
    function_problems,
    workflow_name_problems,
)
from effectflow.builders.progress import JobPlace
from effectflow.builders.steps import step_of
from effectflow.builders.views import View
from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.step import durable
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import Effect, suspend
from effectflow.effects.paths import StepPath, step_path
from effectflow.effects.signatures import effect_types, environment_type, input_type
from effectflow.runs.blueprint import Blueprint, Wrapped
from effectflow.runs.step_loop import Done, Next, advance, pure_result
from effectflow.runs.workflow import Workflow

Env = TypeVar("Env", bound=HasCheckpoints, contravariant=True)
E = TypeVar("E", covariant=True)
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


def _round_of(path: str) -> str:
    return f"round {StepPath(StepPath(path).segments[0]).occurrence}"


def _current_round(checkpoint: Checkpoint) -> JobPlace:
    paths = map(StepPath, checkpoint.metadata.attempts)
    rounds = sum(path.name == "round" and not path.flow for path in paths)
    return JobPlace(step_path("", "round", rounds) if rounds else "", rounds)


VIEW = View(
    place=_round_of,
    rows=lambda checkpoint: [("round", str(_current_round(checkpoint).iteration))],
    job=_current_round,
)


@dataclass(frozen=True, slots=True)
class IterativeResult(Generic[S_co]):
    """The outcome of an iterative workflow.

    Attributes:
        value: the value of the last round.
        rounds: the number of rounds.
        is_converged: True if the value converged, False if `max_rounds` ended the workflow.
    """

    value: S_co
    rounds: int
    is_converged: bool


@dataclass(frozen=True, slots=True)
class _Reached:
    """The value after a number of rounds, and the value before the last of them."""

    value: Any
    rounds: int = 0
    before: Any = None


class Iterative(Workflow[Env, E, S, IterativeResult[S]], Generic[Env, E, S]):
    """A workflow that improves a value in rounds, until it converges.

    Each round is a durable step, `round`, `round#2`, ...: a resume continues in the round that was
    interrupted. The steps within a round are durable as well, so a round may be a whole map-reduce job
    (`job.body(...)`): a resume runs only the rest of it.

    Parameters:
        name: the workflow's name.
        round: returns the effect that yields the next value. The classes of values and errors are read
            from its annotations. The options of a `@step`, such as `retry`, apply to each round.
        converged: called with the values before and after a round; True ends the workflow. Pure.
        max_rounds: the workflow ends after this many rounds at the latest; an int >= 1. It is part of
            the definition: a run continues with another bound only with `force=True`.
        version: change it when a code change matters to runs in progress.

    It yields an IterativeResult, and fails with the errors of `round`. Raises ValueError, with all
    problems, for a wrong definition.

    Example:
        >>> from dataclasses import dataclass
        >>> from typing import Never
        >>> from effectflow import Checkpoints, Effect, pure
        >>> from effectflow.iterative import Iterative
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
        ... class Env:
        ...     checkpoints: Checkpoints
        >>> env = Env(Checkpoints(MemoryStore()))
        >>> root_of_two.start(1.0).run_sync(env)
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
        problems = [
            *workflow_name_problems(name),
            *effect_problems(round, "`round`", "a function from a value to an effect"),
            *function_problems(converged, "`converged`", "a function of two values"),
            *count_problems(max_rounds, "max_rounds", least=1),
        ]
        if problems:
            raise InvalidDefinition(f"iterative workflow {name!r}", problems)
        output, error = effect_types(round)
        types = KnownTypes.of(IterativeResult, output, error, input_type(round))
        step, function = step_of(round, "round", types)
        structure = (f"max_rounds={max_rounds}",)
        definition = Definition(name, version, "iterative", (step.name,), structure)

        def pick(reached: _Reached) -> Next[_Reached] | Done:
            value, rounds = reached.value, reached.rounds
            is_converged = rounds > 0 and bool(
                pure_result(converged(reached.before, value), f"`converged` of {name!r}")
            )
            if is_converged or rounds == max_rounds:
                return Done(IterativeResult(value, rounds, is_converged))
            work = suspend(partial(function, value))
            return Next(durable(step, work), lambda output: _Reached(output, rounds + 1, value))

        super().__init__(
            Blueprint(
                definition,
                body=lambda value: advance(pick, _Reached(value), ("rounds", name)),
                input_type=input_type(round),
                input_types=types,
                output_types=types,
                output_type=cast(Any, IterativeResult)[Any if output is None else output],
                environment_types=lambda: [environment_type(round)],
                yields=Wrapped("an IterativeResult", "lambda result: result.value"),
            )
        )
