"""`effectflow graph`: the shape of the workflows of all builders, with the position of a run."""

from __future__ import annotations

import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest

from effectflow.builders.diagrams import Arrow, Box, Diagram
from effectflow.builders.pictures import to_svg
from tests.cli.conftest import Command

SHAPES = textwrap.dedent("""
    from typing import Never

    from effectflow import Do, Effect, Workflow, fail, par, pure, step, workflow
    from effectflow.graphs import StateGraph
    from effectflow.iterative import Iterative
    from effectflow.machines import Moved, StateMachine, Transition
    from effectflow.mapreduce import MapReduce

    @step
    def pick(x: int) -> Effect[object, str, int]:
        return pure(x + 1)

    @step
    def pack(x: int) -> Effect[object, str, int]:
        return fail("no box")

    listed = Workflow.of_steps("listed", [pick, pack])

    @workflow
    def coded(x: int) -> Do[object, str, int]:
        a, b = yield from par(pick(x), pick(x + 1))
        return (yield from pack(a + b))

    def closer(x: float) -> Effect[object, Never, float]:
        return pure(x / 2)

    halved = Iterative("halved", closer, converged=lambda a, b: b < 1, max_rounds=9)

    drawn = (
        StateGraph[object, str, int]("drawn")
        .node("first", pick)
        .node("second", pack)
        .entry("first")
        .edge("first", "second")
        .exit("second")
        .build()
    )

    switch: StateMachine[object, Never, str] = StateMachine(
        "switch",
        initial="off",
        transitions=[
            Transition("press", "off", "on", lambda state: pure(Moved("on"))),
            Transition("burn", "on", "dark", lambda state: pure(Moved("dark"))),
        ],
        final={"dark"},
    )

    def measured(word: str) -> Effect[object, Never, int]:
        return pure(len(word))

    def total(lengths: list[int]) -> Effect[object, Never, int]:
        return pure(sum(lengths))

    words = MapReduce(
        "words", items=lambda words: words, map=measured, reduce=total, key=str, limit=2
    )
""")


@pytest.fixture(autouse=True)
def shapes(folder: Path) -> None:
    (folder / "shapes.py").write_text(SHAPES)


def marked(effectflow: Command, *arguments: str) -> dict[str, str]:
    ran = effectflow("graph", *arguments, "--json")
    assert ran.code == 0, ran
    return {box["label"]: box["mark"] for box in ran.json["boxes"] if box["label"]}


def test_a_list_of_steps_shows_where_a_run_is(effectflow: Command) -> None:
    assert marked(effectflow, "shapes:listed") == {"pick": "plain", "pack": "plain"}
    effectflow("run", "shapes:listed", "--input", "1", "--run-id", "r")
    assert marked(effectflow, "shapes:listed", "--run", "r") == {
        "pick": "visited",
        "pack": "current",
    }
    text = effectflow("graph", "shapes:listed", "--run", "r").out
    assert text.startswith('flowchart TD\n    n0((" "))\n    n1["pick"]\n')
    assert "class n2 current" in text


def test_code_is_drawn_as_a_run_has_executed_it(effectflow: Command) -> None:
    assert marked(effectflow, "shapes:coded") == {"coded": "plain"}
    effectflow("run", "shapes:coded", "--input", "1", "--run-id", "r")
    boxes = effectflow("graph", "shapes:coded", "--run", "r", "--json").json["boxes"]
    assert [(box["label"], box["mark"]) for box in boxes[1:-1]] == [
        ("par", "visited"), ("pack", "current"),
    ]  # fmt: skip
    assert [inner["label"] for inner in boxes[1]["inside"]] == ["[0] pick", "[1] pick"]


def test_an_iteration_and_a_graph_have_their_own_shapes(effectflow: Command) -> None:
    effectflow("run", "shapes:halved", "--input", "4.0", "--run-id", "h")
    assert marked(effectflow, "shapes:halved", "--run", "h") == {"round\n3 times": "visited"}
    effectflow("run", "shapes:drawn", "--input", "1", "--run-id", "d")
    assert marked(effectflow, "shapes:drawn", "--run", "d") == {
        "first\n1 visit": "visited",
        "second\n1 visit": "current",
    }


def test_a_machine_and_a_job_have_their_own_shapes(effectflow: Command) -> None:
    effectflow("run", "shapes:switch", "--run-id", "m")
    assert marked(effectflow, "shapes:switch", "--run", "m") == {
        "off": "visited",
        "on": "visited",
        "dark": "current",
    }
    assert marked(effectflow, "shapes:words") == {"measured": "plain", "total": "plain"}
    effectflow("run", "shapes:words", "--input", '["a", "bc"]', "--run-id", "w")
    assert marked(effectflow, "shapes:words", "--run", "w") == {
        "measured\n2 of 2 items": "visited",
        "total\nround 1": "visited",
    }


def test_a_picture_is_written_and_a_run_of_another_workflow_is_rejected(
    effectflow: Command, folder: Path
) -> None:
    effectflow("run", "shapes:drawn", "--input", "1", "--run-id", "d")
    ran = effectflow("graph", "shapes:drawn", "--run", "d", "--svg", "d.svg")
    assert (ran.code, ran.out) == (0, "The picture is in d.svg.\n")
    ElementTree.parse(folder / "d.svg")
    refused = effectflow("graph", "shapes:listed", "--run", "d")
    assert refused.code == 2
    assert "run 'd' is of workflow 'drawn', not of 'listed'" in refused.err


def test_a_picture_has_nested_boxes_cycles_and_escaped_labels() -> None:
    inner = (Box("b/x", "<x>\x1b"), Box("b/y", "y"))
    boxes = (
        Box("s", shape="start"),
        Box("a", "a"),
        Box("b", "b", inside=inner),
        Box("e", shape="end"),
    )
    arrows = (
        Arrow("s", "a"),
        Arrow("a", "b", "if <ready>"),
        Arrow("b", "a", "again", is_dashed=True),
        Arrow("b/x", "b/y"),
        Arrow("b", "b", "self"),
        Arrow("b", "e"),
    )

    root = ElementTree.fromstring(to_svg(Diagram(boxes, arrows)))

    space = "{http://www.w3.org/2000/svg}"
    texts = {one.text: float(one.attrib["y"]) for one in root.iter(f"{space}text")}
    assert texts["<x>\\x1b"] > texts["b"] > texts["a"]
    assert {"if <ready>", "again", "self"} <= set(texts)
    assert len(list(root.iter(f"{space}circle"))) == 2


def test_a_workflow_is_drawn_without_its_environment(effectflow: Command, folder: Path) -> None:
    needs = "\n\nclass Env:\n    bank: int\n\n@workflow\ndef paid(x: int) -> Do[Env, str, int]:\n"
    (folder / "needs.py").write_text(SHAPES + needs + "    return (yield from pick(x))\n")
    ran = effectflow("graph", "needs:paid")
    assert ran.code == 0, ran
    assert "flowchart" in ran.out
