"""Edits of any program, between two lives: refused before anything is executed, or nothing is repeated.

`test_edits.py` has the verdicts of single edits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import anyio
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from effectflow import Checkpoints
from effectflow.checkpoint import BeforeStep, Completed, Entry, Finished, read_entries
from effectflow.checkpoint.order import Spans
from effectflow.stores import MemoryStore
from tests.runs.journals import cut, journal
from tests.runs.test_drawn_programs import ending
from tests.runs.trees import Tree, TreeApp, end_of, trees, workflow_of
from tests.sweeps import examples as examples_of

WRAPS = ["result", "timeout", "step", "limited step", "call"]
WRAPS_BESIDE = ["seq", "recover", "tap_err", "on_exit", "bracket"]
WRAPS_BESIDE += ["par", "par_all", "traverse", "async traverse", "race", "loan"]

EDITS = ["wrap", "wrap", "unwrap", "swap", "replace", "rename"]

NUMBER = st.integers(0, 10**6)


def with_names(tree: Tree, numbers: Iterator[int]) -> Tree:
    """Return a tree in which no two steps have the same name."""
    parts = tuple(with_names(part, numbers) for part in tree.parts)
    return replace(tree, parts=parts, name=f"s{next(numbers)}")


UNNAMED = {"call", "graph", "job"}
"""The parts that have the same name in every program."""


def kinds_of(tree: Tree) -> list[str]:
    return [tree.kind, *(kind for part in tree.parts for kind in kinds_of(part))]


def edited(tree: Tree, edit: str, place: int, choice: int) -> Tree:
    """Return a tree that differs in one place. Numbers choose the place, and what is there instead."""
    places = list(paths_in(tree))
    return at(tree, places[place % len(places)], edit, choice)


def paths_in(tree: Tree, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    yield path
    for number, part in enumerate(tree.parts):
        yield from paths_in(part, (*path, number))


def at(tree: Tree, path: tuple[int, ...], edit: str, choice: int) -> Tree:
    if path:
        parts = list(tree.parts)
        parts[path[0]] = at(parts[path[0]], path[1:], edit, choice)
        return replace(tree, parts=tuple(parts))
    new = Tree("ok", name="new")
    match edit:
        case "wrap" if choice % 3 == 0:
            return Tree(WRAPS[choice % len(WRAPS)], (tree,), "around")
        case "wrap":
            both = (tree, new) if choice % 2 else (new, tree)
            return Tree(WRAPS_BESIDE[choice % len(WRAPS_BESIDE)], both, "around")
        case "unwrap" if tree.parts:
            return tree.parts[choice % len(tree.parts)]
        case "swap" if len(tree.parts) > 1:
            return replace(tree, parts=tree.parts[::-1])
        case "rename":
            return replace(tree, name="renamed")
        case _:
            return new


def completed_in(entries: list[Entry]) -> set[str]:
    """Return the steps that a resume must not execute again, as far as no others have their names."""
    last = entries[-1]
    void = Spans(last.retry if isinstance(last, Finished) else ())
    counted = [entry for number, entry in enumerate(entries, 1) if number not in void]
    names = [name_of(entry.step) for entry in counted if isinstance(entry, Completed)]
    return {name for name in names if name.startswith("s")}


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


async def check_edit(before: Tree, after: Tree, point: int) -> None:
    store = MemoryStore()
    await ending(workflow_of(before).start(None, run_id="r"), TreeApp(Checkpoints(store)))
    left = await cut(store, 1 + point % len(await read_entries(store, "r")))
    entries = await read_entries(left, "r")

    app = TreeApp(Checkpoints(left))
    result = await ending(workflow_of(after).resume("r"), app)

    shown = f"{result}: {app.world.begun} after\n" + "\n".join(await journal(left))
    # A replay enters the steps again that go on, and those have steps inside.
    executed = {name for name in map(name_of, app.world.begun) if not name.startswith("around")}
    assert not executed & completed_in(entries), shown
    if "has changed since" in result:
        assert not executed, shown
        # If the process died before a failed run could end, the resume records that end only.
        found = await read_entries(left, "r")
        assert found[: len(entries)] == entries, shown
        assert not any(isinstance(entry, BeforeStep) for entry in found[len(entries) :]), shown


@examples_of(60, 5000)
def test_an_edit_is_refused_before_anything_is_executed_or_repeats_nothing(examples: int) -> None:
    edits = st.tuples(st.sampled_from(EDITS), NUMBER, NUMBER)

    @settings(max_examples=examples, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(trees(10), edits, NUMBER)
    def check(tree: Tree, edit: tuple[str, int, int], point: int) -> None:
        before = with_names(tree, count())
        after = edited(before, *edit)
        assume(end_of(after) not in (None, "hang"))
        # Nothing tells two of them apart, so the end of one stands for another that takes its place.
        assume(sum(kind in UNNAMED for kind in kinds_of(after)) <= 1)
        anyio.run(check_edit, before, after, point)

    logging.disable(logging.CRITICAL)
    try:
        check()
    finally:
        logging.disable(logging.NOTSET)
