"""Make a failing case smaller, as long as it breaks the same promise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from tests.exploration.lives import LifePlan
from tests.exploration.programs import Node, is_valid
from tests.exploration.trials import Case, Trial


def shrink(failed: Trial, *, seconds: float) -> Trial:
    """Return the smallest trial found in this time that breaks the same promise. Greedy."""
    promise = failed.problems[0].promise
    deadline = time.monotonic() + seconds
    best = failed
    while (smaller := _smaller(best, promise, deadline)) is not None:
        best = smaller
    return best


def _smaller(best: Trial, promise: str, deadline: float) -> Trial | None:
    for case in _candidates(best.case):
        if time.monotonic() > deadline:
            return None
        trial = Trial(case)
        trial.run()
        if trial.problems and trial.problems[0].promise == promise:
            return trial
    return None


def _candidates(case: Case) -> Iterator[Case]:
    """Yield smaller cases, those with less to read first."""
    for number in range(len(case.lives) - 1):
        yield replace(case, lives=(*case.lives[:number], *case.lives[number + 1 :]))
    if case.cancel_at is not None:
        yield replace(case, cancel_at=None)
    programs = sorted(filter(is_valid, smaller_programs(case.program)), key=size)
    for program in programs:
        for lives in _lives_with_earlier_deaths(case):
            yield replace(case, program=program, lives=lives)
    for lives in simpler_lives(case):
        yield replace(case, lives=lives)


def _lives_with_earlier_deaths(case: Case) -> Iterator[tuple[LifePlan, ...]]:
    """Yield the same lives, and those whose first one dies earlier, as a smaller program needs."""
    yield case.lives
    first, *others = case.lives
    for number in range(first.dies_after or 1, 1, -1):
        yield (replace(first, dies_after=number - 1), *others)


def simpler_lives(case: Case) -> Iterator[tuple[LifePlan, ...]]:
    for number, plan in enumerate(case.lives):
        for changes in (
            {"by": "start"},
            {"by": "resume"},
            {"pause": 0.0},
            {"is_slow": False},
            {"is_durable": True},
            {"is_native": False},
        ):
            simpler = replace(plan, **changes)
            if simpler != plan and not (plan.by in ("start", "plan") and "by" in changes):
                yield (*case.lives[:number], simpler, *case.lives[number + 1 :])


def size(program: Node) -> int:
    return sum(1 for _ in program)


def smaller_programs(node: Node) -> Iterator[Node]:
    """Yield the programs in which one node is replaced by a part of it, or by something simpler."""
    yield from node.parts
    if not node.parts and node.kind not in ("step", "local", "book"):
        yield Node("local", node.name)
        yield Node("step", node.name)
    if node.kind == "step":
        yield Node("local", node.name)
    if node.parts:
        yield Node("step", node.name)
    if len(node.parts) > 1 and node.kind not in ("recover", "try"):
        for number in range(len(node.parts)):
            yield replace(node, parts=(*node.parts[:number], *node.parts[number + 1 :]))
    for number, part in enumerate(node.parts):
        for smaller in smaller_programs(part):
            yield replace(node, parts=(*node.parts[:number], smaller, *node.parts[number + 1 :]))
