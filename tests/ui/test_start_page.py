from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import pytest

from effectflow import Checkpoints, Do, Effect, RunStatus, Workflow, pure, step, workflow
from effectflow.checkpoint import RunSummary
from effectflow.checkpoint.integrity import first_digest
from effectflow.runs import StepMigration
from effectflow.service import App
from effectflow.stores import MemoryStore, SqliteStore
from tests.sealing import sealed
from tests.ui import orders
from tests.ui.steered import Steering


@pytest.fixture
def steering(tmp_path: Path) -> Steering:
    return Steering(orders.app_on(Checkpoints(SqliteStore(tmp_path / "runs.db"))))


def test_a_run_is_started_by_a_form_of_its_input(steering: Steering) -> None:
    assert "hold" in steering.show("/start").text
    page = steering.show("/start?workflow=hold")
    typed = page.forms[-1].typed | {
        "input/item": "hat",
        "input/price": "5.50",
        "run_id": "h1",
        "key": "emma",
        "priority": "3",
        "context": '{"tenant": "emma"}',
    }
    page.address = page.forms[-1].action
    for _ in range(2):
        made = steering.submit(page, typed)
        assert (made.status, made.address) == (303, "/run?id=h1&done=start")
    assert steering.drive(orders.hold, "h1", RunStatus.COMPLETED) == "hat reserved"
    conflict = steering.submit(page, typed | {"input/item": "cap"})
    assert conflict.status == 422
    assert "another input" in conflict.text
    assert conflict.forms[-1].typed["input/item"] == "cap"


def test_a_run_is_started_like_another_one(steering: Steering) -> None:
    steering.do(orders.hold, "h1")
    page = steering.show("/start?like=h1")
    assert page.forms[-1].typed["input/price"] == "5.50"
    assert page.forms[-1].typed["run_id"] != "h1"
    page.address = page.forms[-1].action
    made = steering.submit(page, page.forms[-1].typed)
    assert made.status == 303


def test_the_input_of_a_run_of_an_earlier_version_is_shown_as_the_code_takes_it_now() -> None:
    """Also where a run is forked or copied as a test. A migration that raises is told."""

    def change(state: dict[str, int]) -> dict[str, int]:
        if "exits" in state:
            raise SystemExit(state["exits"])
        if "sum" not in state:
            raise KeyError("sum")
        return {"total": state["sum"]}

    @step
    def added(state: dict[str, int]) -> Effect[orders.Shop, Exception, dict[str, int]]:
        return pure(state)

    @step
    def summed(state: dict[str, int]) -> Effect[orders.Shop, Exception, dict[str, int]]:
        return pure(state)

    checkpoints = Checkpoints(MemoryStore())
    before = Workflow.of_steps("adding", [added])
    for run_id, state in (("a1", {"sum": 5}), ("a2", {"of": 5}), ("a3", {"exits": 3})):
        anyio.run(before.start(state, run_id=run_id).run, orders.Shop(checkpoints))
    renamed = StepMigration(change, renames={"added": "summed"})
    after = Workflow.of_steps("adding", [summed], version="2", migrations={1: renamed})
    steering = Steering(App([after], environment=orders.Shop, checkpoints=checkpoints))
    for address in ("/start?like=a1", "/run/act/fork?input=1&id=a1"):
        assert '"total": 5' in steering.show(address).forms[-1].typed["input"]
    assert "{'total': 5}" in steering.show("/run/act/crash-test?id=a1").code
    # The plan of a retry names steps as the code does now.
    for name in ("added", "summed"):
        assert steering.show(f"/run/act/fork?at={name}&id=a1").status == 200
    for page in ("start?like=", "run/act/crash-test?id=", "run/drawing?id="):
        assert "KeyError: 'sum'" in steering.show(f"/{page}a2").text
        assert "SystemExit: 3" in steering.show(f"/{page}a3").text


@pytest.mark.parametrize(
    ("field", "text", "problem"),
    [
        ("input/price", "much", "decimal"),
        ("run_id", " ", "id"),
        ("priority", "9999999999", "32 bits"),
        ("key", "k" * 201, "200 bytes"),
        ("delay", "-1", "delay"),
        ("context", "[1]", "dict"),
        ("context", "{", "JSON"),
    ],
)
def test_what_cannot_be_started_says_why_at_its_field(
    steering: Steering, field: str, text: str, problem: str
) -> None:
    page = steering.show("/start?workflow=hold")
    page.address = page.forms[-1].action
    typed = page.forms[-1].typed | {"input/item": "hat", "input/price": "1", field: text}
    answer = steering.submit(page, typed)
    assert answer.status == 422
    assert answer.forms[-1].typed[field] == text
    place = answer.html.partition(f'id=":{field}-problem"')[2].partition("</strong>")[0]
    assert problem in place


@dataclass(frozen=True)
class Size:
    size: int

    def __post_init__(self) -> None:
        raise SystemExit(f"{self.size} is too large")


@workflow
def cut(_: Size) -> Do[orders.Shop, Exception, None]:
    yield from pure(None)


def test_a_validator_that_would_end_the_process_is_told_at_its_field() -> None:
    steering = Steering(App([cut], environment=orders.Shop, checkpoints=Checkpoints(MemoryStore())))
    page = steering.show("/start?workflow=cut")
    answer = steering.submit(page, page.forms[-1].typed | {"input/size": "7"})
    assert answer.status == 422
    assert "the code of a class raised SystemExit('7 is too large')" in answer.text
    assert answer.forms[-1].typed["input/size"] == "7"


def test_an_unknown_workflow_and_a_run_without_code_say_so(steering: Steering) -> None:
    assert steering.show("/start?workflow=nothing").status == 404
    assert steering.show("/start?like=nothing").status == 404


def test_a_run_with_a_forged_beginning_starts_nothing() -> None:
    checkpoints = Checkpoints(MemoryStore())
    body, _ = sealed(b'{"entry":"suspended","at":1.0}', first_digest("s1"))
    summary = RunSummary("hold", RunStatus.SUSPENDED, 1.0)
    anyio.run(partial(checkpoints.store.create, "s1", (body,), summary=summary))
    page = Steering(orders.app_on(checkpoints)).show("/start?like=s1")
    assert page.status == 409
    assert "cannot be read" in page.text
