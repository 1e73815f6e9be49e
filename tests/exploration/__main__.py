"""Explore random programs: crash them at their appends, stop them, correct what failed, and resume them.

python -m tests.exploration 0 100                      programs 0 to 99, in memory, on asyncio
python -m tests.exploration 0 100 --backend trio
python -m tests.exploration 0 100 --store sqlite
python -m tests.exploration 0 100 --today              only what the present engine promises
python -m tests.exploration --show 7                   a program, what happened, and its journal
python -m tests.exploration --shrink 7                 the same for a smaller one with the same problem
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Literal

import typer

from tests.exploration.programs import KINDS
from tests.exploration.shrink import shrink
from tests.exploration.story import code_of, story_of
from tests.exploration.trials import Exploration, Trial


def main(
    first: Annotated[int, typer.Argument(help="The first seed.")] = 0,
    last: Annotated[int, typer.Argument(help="The seed after the last one.")] = 20,
    backend: Literal["asyncio", "trio"] = "asyncio",
    store: Literal["memory", "sqlite"] = "memory",
    points: Annotated[int, typer.Option(help="At how many appends the first process dies.")] = 12,
    without: Annotated[str, typer.Option(help="Kinds of nodes to leave out, with commas.")] = "",
    show: Annotated[int | None, typer.Option(help="Show this seed.")] = None,
    shrunk: Annotated[int | None, typer.Option("--shrink", help="Shrink this seed.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to shrink.")] = 60.0,
) -> None:
    """Explore the programs with the seeds FIRST to LAST - 1. Exit with 1 if a promise is broken."""
    kinds = KINDS - set(filter(None, without.split(",")))

    def explore(seed: int) -> Exploration:
        exploration = Exploration(seed, kinds, backend, store, points)
        exploration.run()
        return exploration

    chosen = show if shrunk is None else shrunk
    if chosen is None:
        raise typer.Exit(_explore_all(explore, range(first, last)))
    exploration = explore(chosen)
    trial = exploration.failed
    if trial is not None and shrunk is not None:
        trial = shrink(trial, seconds=seconds)
    if trial is None:
        trial = Trial(exploration.undisturbed())
        trial.run()
    typer.echo(story_of(trial))
    if shrunk is not None:
        typer.echo(code_of(trial.case))


def _explore_all(explore: Callable[[int], Exploration], seeds: range) -> int:
    began, lives = time.monotonic(), 0
    broken: Counter[str] = Counter()
    for seed in seeds:
        exploration = explore(seed)
        lives += exploration.lives
        if exploration.failed is not None:
            problem = exploration.failed.problems[0]
            broken[problem.promise] += 1
            typer.echo(f"seed {seed}: {str(problem)[:300]}")
    for promise, number in broken.most_common():
        typer.echo(f"{number:4} x {promise}")
    took = time.monotonic() - began
    bad = sum(broken.values())
    typer.echo(f"{len(seeds)} programs, {lives} lives, {bad} bad, {took:.1f} s")
    return int(bad > 0)


if __name__ == "__main__":
    typer.run(main)
