"""The progress of a run, and the diagram that shows it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from effectflow import Checkpoints, Effect, fail, pure, workflow
from effectflow.checkpoint import Checkpoint, Completed, read_checkpoint, read_entries
from effectflow.graphs import Graph, GraphProgress, StateGraph
from effectflow.stores import MemoryStore
from tests.apps import App

pytestmark = pytest.mark.anyio


def up_to(limit: int) -> Any:
    """A node that adds one, and fails from the limit on."""

    def add(number: int) -> Effect[object, str, int]:
        return fail("too much") if number >= limit else pure(number + 1)

    return add


def is_even(number: int) -> bool:
    return number % 2 == 0


def rounds(limit: int = 100) -> Graph[App, Any, int]:
    """From 1: count, twice, then count and both in turn, until the number is 12."""
    add = up_to(limit)
    inner = StateGraph[App, str, int]("inner").node("one", add).node("two", add).edge("one", "two")
    return (
        StateGraph[App, str, int]("rounds")
        .node("count", add)
        .node("twice", inner.entry("one").exit("two").build())
        .parallel("both", {"left": add, "right": pure}, lambda _, found: found["left"])
        .node("end", pure)
        .edge("count", "twice", when=is_even)
        .edge("count", "both")
        .edge("twice", "count")
        .edge("both", "end", when=lambda number: number > 10)
        .edge("both", "count")
        .entry("count")
        .exit("end")
        .build()
    )


async def stopped_at(limit: int) -> Checkpoint:
    """The checkpoint of a run that failed when its number reached the limit."""
    app = App(Checkpoints(MemoryStore()))
    await rounds(limit).start(1, run_id="r").run(app)
    return await read_checkpoint(app.checkpoints.store, "r")


COUNTED = {"count": 1, "twice": 1, "twice/one": 1}


@pytest.mark.parametrize(
    ("limit", "visits", "current"),
    [
        (1, {"count": 1}, ("count",)),
        (2, COUNTED, ("twice", "twice/one")),
        (3, {**COUNTED, "twice/two": 1}, ("twice", "twice/two")),
        (4, {**COUNTED, "count": 2, "twice/two": 1}, ("count",)),
    ],
)
async def test_progress_names_the_current_node_and_counts_visits(
    limit: int, visits: dict[str, int], current: tuple[str, ...]
) -> None:
    progress = rounds().progress(await stopped_at(limit))

    assert progress == GraphProgress(visits, current)


async def test_progress_names_the_branch_that_is_not_complete() -> None:
    progress = rounds().progress(await stopped_at(7))

    assert progress.visits["both"] == progress.visits["both/left"] == 2
    assert progress.current[:2] == ("both", "both/left")


async def test_a_complete_run_is_at_its_exit_and_a_new_run_is_at_no_node() -> None:
    app = App(Checkpoints(MemoryStore()))
    await rounds().start(1, run_id="r").run(app)
    begun = await read_checkpoint(app.checkpoints.store, "r", at=1)
    ended = await read_checkpoint(app.checkpoints.store, "r")

    assert rounds().progress(begun) == GraphProgress({}, ())
    assert rounds().progress(ended).current == ("end",)
    assert rounds().progress(ended).visits["both"] == 4


async def test_between_two_nodes_the_current_node_is_the_completed_one() -> None:
    app = App(Checkpoints(MemoryStore()))
    await rounds().start(1, run_id="r").run(app)
    entries = await read_entries(app.checkpoints.store, "r")
    completed = [isinstance(entry, Completed) and entry.step == "twice" for entry in entries]
    checkpoint = await read_checkpoint(app.checkpoints.store, "r", at=completed.index(True) + 1)

    assert rounds().progress(checkpoint).current == ("twice",)


async def test_progress_is_the_same_for_a_saved_checkpoint() -> None:
    checkpoint = await stopped_at(7)

    assert rounds().progress(Checkpoint.from_json(checkpoint.to_json())) == rounds().progress(
        checkpoint
    )


@workflow
def something_else(number: int) -> Effect[App, str, int]:
    return pure(number)


async def test_the_checkpoint_of_another_workflow_is_rejected() -> None:
    app = App(Checkpoints(MemoryStore()))
    await something_else.start(1, run_id="r").run(app)
    checkpoint = await read_checkpoint(app.checkpoints.store, "r")

    for look in (rounds().progress, rounds().to_mermaid):
        with pytest.raises(
            ValueError, match=r"'r' is of workflow 'something_else', not of 'rounds'"
        ):
            look(checkpoint)


MERMAID = """\
flowchart TD
    n0((" "))
    n1["count"]
    subgraph n2["twice"]
        n3((" "))
        n4["one"]
        n5["two"]
        n6(((" ")))
    end
    subgraph n7["both (in parallel)"]
        n8["left"]
        n9["right"]
    end
    n10["end"]
    n11(((" ")))
    n0 --> n1
    n1 -->|"is_even"| n2
    n1 -->|"otherwise"| n7
    n2 --> n1
    n3 --> n4
    n4 --> n5
    n5 --> n6
    n7 -->|"if"| n10
    n7 -->|"otherwise"| n1
    n10 --> n11
"""


def test_mermaid_shows_nested_graphs_and_branches() -> None:
    assert rounds().to_mermaid() == MERMAID


async def test_the_diagram_marks_the_visits_of_a_run() -> None:
    checkpoint = await stopped_at(4)

    mermaid = rounds().to_mermaid(checkpoint)
    assert 'n1["count<br/>2 visits"]' in mermaid
    assert 'n4["one<br/>1 visit"]' in mermaid
    assert 'n9["right"]' in mermaid
    assert re.findall(r"class (n\d+) current", mermaid) == ["n1"]
    assert re.findall(r"class (n\d+) visited", mermaid) == ["n2", "n4", "n5"]


def test_a_label_names_a_condition() -> None:
    graph = (
        StateGraph[App, str, int]("g")
        .node("a", pure)
        .node("b", pure)
        .edge("a", "b", when=lambda number: number > 3, label="more than 3")
        .edge("a", "a")
        .entry("a")
        .exit("b")
        .build()
    )

    assert '-->|"more than 3"|' in graph.to_mermaid()
