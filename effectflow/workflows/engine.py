"""One loop for all workflows that pick a step by their state: machines, graphs, rounds and step lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from effectflow.checkpoint.durable_step import StepDefinition
from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.values import MalformedValue, Tree, from_tree
from effectflow.effects import Effect
from effectflow.effects.nodes import Fail, FromGenerator, Map, Pure, Suspend
from effectflow.effects.scope import step_path

S = TypeVar("S")

AnyEffect = Effect[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Next(Generic[S]):
    """Run a durable step, and continue with the state that its output leads to.

    Attributes:
        step: the step's definition, which says where its output is recorded, and of which types it is.
        effect: the durable step itself.
        then: makes the next state of the output. Pure.
    """

    step: StepDefinition
    effect: AnyEffect
    then: Callable[[Any], S]


@dataclass(frozen=True, slots=True)
class Done:
    """The workflow is complete and yields `value`."""

    value: Any


@dataclass(frozen=True, slots=True)
class Stuck:
    """The workflow cannot continue and fails with `error`."""

    error: object


Pick: TypeAlias = Callable[[S], Next[S] | Done | Stuck]
"""Decides by the state alone what comes next. Pure: every resume decides again."""


def advance(pick: Pick[S], state: S, shown: tuple[object, ...]) -> AnyEffect:
    """Return the effect that runs one picked step after another, and yields the value of `Done`.

    It takes constant stack and memory, however many steps are picked.

    Parameters:
        pick: decides what comes next.
        state: where to begin.
        shown: what the user called to get the effect, for `repr`: a name and its arguments.
    """
    return Suspend(lambda _: FromGenerator(_advance, (pick, state)), shown)


def _advance(pick: Pick[S], state: S) -> Generator[AnyEffect, Any, Any]:
    # A loop that yields each step, so that nothing nests or grows.
    while isinstance(picked := pick(state), Next):
        state = picked.then((yield picked.effect))
    return (yield _end(picked))


def advance_once(pick: Pick[S], state: S, shown: tuple[object, ...]) -> AnyEffect:
    """Return the effect that runs one step and yields the state after it, or ends as `advance` does."""

    def begin(_: object) -> AnyEffect:
        picked = pick(state)
        return Map(picked.effect, picked.then) if isinstance(picked, Next) else _end(picked)

    return Suspend(begin, shown)


def _end(picked: Done | Stuck) -> AnyEffect:
    return Pure(picked.value) if isinstance(picked, Done) else Fail(picked.error)


def first_unrecorded(
    pick: Pick[S], state: S, outputs: Mapping[str, Tree], run_id: str, flow: str = ""
) -> str | None:
    """Return the path of the step that a resume begins with; None if it runs no further step. Pure.

    Parameters:
        pick, state: as for `advance`.
        outputs: the recorded outputs, by the path of their step.
        run_id: the run, for errors.
        flow: the path of the flow in which the steps run.

    Raises CorruptCheckpoint for an output that is not of the types of its step.
    """
    occurrences: Counter[str] = Counter()
    while isinstance(picked := pick(state), Next):
        name = picked.step.name
        occurrences[name] += 1
        path = step_path(flow, name, occurrences[name])
        if path not in outputs:
            return path
        try:
            output = from_tree(outputs[path], path=f"{path}: $", types=picked.step.types)
        except MalformedValue as error:
            reason = f"the output of step {path!r} is not what the step declares: {error}"
            raise CorruptCheckpoint(run_id, reason) from error
        state = picked.then(output)
    return None
