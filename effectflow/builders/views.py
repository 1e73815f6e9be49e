"""What people see of a run, in the words of the builder of its workflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from effectflow.builders.progress import JobPlace
from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.effects.paths import StepPath


def place_in_code(path: str) -> str:
    """Return where a step is in words: in the map or reduce phase of a job, or just its path."""
    branch = StepPath(path).flow
    if branch.key is not None and branch.operator.name == "map":
        return f"phase map, item {branch.key}"
    if branch.key is not None and branch.operator.name == "reduce":
        return f"phase reduce, round {branch.key.partition('.')[0]}"
    return f"step {path}"


def place_of_visit(what: str, path: str) -> str:
    """Return the name and the visit of a step of the run, such as "node review, visit 2"."""
    first = StepPath(StepPath(path).segments[0])
    return f"{what} {first.name}" + (f", visit {first.occurrence}" if first.occurrence > 1 else "")


def _none(_: Checkpoint) -> tuple[()]:
    return ()


def _newest(_: Checkpoint) -> None:
    return None


@dataclass(frozen=True, slots=True)
class View:
    """What a builder says about its runs.

    Attributes:
        place: returns where a step is, in words, for its path.
        rows: yields names and values of the state of a run, as text.
        job: returns where the job of a run is; None for the one that has begun a step last.
    """

    place: Callable[[str], str] = place_in_code
    rows: Callable[[Checkpoint], Iterable[tuple[str, str]]] = _none
    job: Callable[[Checkpoint], JobPlace | None] = _newest
