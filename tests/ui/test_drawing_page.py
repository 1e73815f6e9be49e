from __future__ import annotations

import re
from typing import Any, Never

import anyio

from effectflow import App, Checkpoints, Do, Effect, Workflow, par_traverse, pure, step, workflow
from effectflow.graphs import StateGraph
from effectflow.machines import Moved, StateMachine, Transition
from effectflow.stores import MemoryStore
from tests.ui.small_app import Environment, html_of


def halve(number: int) -> Effect[object, Never, int]:
    return pure(number // 2)


@step
def add(number: int) -> Effect[object, Never, int]:
    return pure(number + 1)


@workflow
def code(count: int) -> Do[Environment, Never, int]:
    yield from par_traverse([1, 2], add)
    for _ in range(count):
        yield from add(1)
    return count


graph = (
    StateGraph[Environment, Never, int]("halving")
    .node("halve", halve)
    .node("done", pure)
    .edge("halve", "done", when=lambda number: number < 10)
    .edge("halve", "halve")
    .entry("halve")
    .exit("done")
    .build()
)

machine = StateMachine(
    "plant",
    initial="seed",
    transitions=[Transition("grow", "seed", "grown", lambda _: pure(Moved("grown")))],
    final={"grown"},
)

listed = Workflow[Environment, Never, int, int].of_steps("listed", [add, halve])


def drawn(ran: Any, given: object, query: str = "", *, is_served_with_app: bool = True) -> str:
    """Return the drawing of a run."""
    checkpoints = Checkpoints(MemoryStore())
    app = App([ran], environment=Environment, checkpoints=checkpoints)
    anyio.run(ran.start(given, run_id="r").run, Environment(checkpoints))
    return html_of(app, f"/run/drawing?id=r{query}", is_served_with_app=is_served_with_app)


def boxes_in(page: str) -> list[tuple[str, str, str]]:
    """Return the marks, the first line and the link of each box."""
    box = r'(?:<a href="([^"]*)">\s*)?<g class="box ([^"]*)">.*?<text[^>]*>(.*?)</text>'
    return [(kind, label, link) for link, kind, label in re.findall(box, page, re.DOTALL)]


def test_the_boxes_of_a_graph_lead_to_the_newest_steps() -> None:
    page = drawn(graph, 100)
    assert boxes_in(page)[:2] == [
        ("visited", "halve", "/run?id=r&step=halve%234#step"),
        ("current", "done", "/run?id=r&step=done#step"),
    ]
    assert "4 visits" in page


def test_without_an_app_the_journal_alone_is_drawn() -> None:
    page = drawn(graph, 20, is_served_with_app=False)
    assert [label for _, label, _ in boxes_in(page)][:3] == ["halve", "halve#2", "done"]
    assert "what its journal alone tells" in page


def test_the_arrows_of_a_machine_lead_to_the_steps_of_their_transitions() -> None:
    page = drawn(machine, None)
    assert ("current", "grown", "") in boxes_in(page)
    assert re.search(
        r'<a href="/run\?id=r&step=grow[^"]*#step"><text class="label"[^>]*>grow<', page
    )


def test_the_chosen_step_is_marked() -> None:
    page = drawn(listed, 3, "&step=halve")
    kinds = {label: kind for kind, label, _ in boxes_in(page)}
    assert kinds["add"] == "visited"
    assert kinds["halve"] == "visited chosen"


def test_a_long_run_of_code_is_drawn_in_part() -> None:
    page = drawn(code, 400, "&step=add%23300")
    labels = [label for _, label, _ in boxes_in(page)]
    assert labels[0] == "par_traverse"
    assert any(re.fullmatch(r"\.\.\. \d+ more \.\.\.", label) for label in labels)
    assert len(labels) < 200
    assert "add#300" in labels
