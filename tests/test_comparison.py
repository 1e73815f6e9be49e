"""What `benchmarks/compare.py` runs of ours does what it says, and its table is right."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.compared import bare_floor, ours
from benchmarks.compared.measurements import MEASUREMENTS, rows_of
from benchmarks.compared.measuring import Meter, Work, begun
from benchmarks.compared.report import FLOOR, OURS, Row, as_json, as_markdown, in_page
from effectflow import Worker

SMALL: dict[str, Any] = {
    "steps": {"runs": 2, "steps": 3},
    "resume": {"steps": 3},
    "values": {"values": [("bytes", 20), ("items", 2), ("ints", 2)]},
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@pytest.mark.parametrize(
    ("program", "measure"),
    [
        (ours, "steps"),
        (bare_floor, "steps"),
        (ours, "resume"),
        (ours, "resume_graph"),
        (ours, "values"),
    ],
)
@pytest.mark.anyio
async def test_a_program_measures_the_figures_of_its_rows(
    program: ModuleType, measure: str, url: str
) -> None:
    meter, name = Meter(), measure.removesuffix("_graph")
    await getattr(program, measure)(meter, url, **SMALL[name])
    meter.figures["bytes"] = 1.0
    measurement = next(each for each in MEASUREMENTS if each.measure == name)
    rows = [*rows_of(measurement, SMALL[name])]
    assert rows
    assert all(row.figure(meter.figures) > 0 for row in rows)


@pytest.mark.parametrize("key", ["", "tenant"])
@pytest.mark.anyio
async def test_a_submitted_run_notes_that_it_began(url: str, tmp_path: Path, key: str) -> None:
    file, app = tmp_path / "begun", ours.app(url, has_limits=key != "")
    async with ours.client(url) as submit, Worker(app) as worker:
        await submit(Work(str(file), "first", key=key))
        await worker.idle()
    assert [name for name, _ in begun(file)] == ["first"]


@pytest.mark.parametrize("name", ["submit-1", "latency", "queue-throughput", "queue-fairness"])
def test_rows_of_submitted_runs_say_whether_their_queue_has_limits(name: str) -> None:
    [measurement] = [each for each in MEASUREMENTS if each.name == name]
    titles = [row.title for row in rows_of(measurement, measurement.options)]
    has_limits = [" queue" in title for title in titles]
    assert has_limits == [name.startswith("queue")] * len(titles)


MEASURED = {
    "m": {
        OURS: [{"x": 2.0}, {"x": 4.0}, {"x": 3.0}],
        FLOOR: [{"x": 1.0}, {"x": 1.0}, {"x": 1.0}],
        "Slow": [{"x": 20.0}, {"x": 40.0}, {"x": 60.0}],
        "Fast": [{"x": 1.0}, {"x": 2.0}, {"x": 1.5}],
    }
}
ABSENT = {"m": {"Other": "Other has no x."}}


def row(**kind: bool) -> Row:
    return Row("m", "a thing", "ms", lambda figures: figures["x"], **kind)


def test_the_table_shows_medians_with_ranges_and_where_a_peer_is_ahead() -> None:
    assert as_markdown([row()], MEASURED, ABSENT, ["a fact"]) == (
        "- a fact\n\n"
        "| | effectflow | Slow | Fast | against the best peer |\n"
        "|---|---|---|---|---|\n"
        "| a thing, ms | 3 (2 to 4) | 40 (20 to 60) | 1.5 (1 to 2) | **2 times worse than Fast** |\n"
    )


def test_the_table_says_why_a_system_is_left_out() -> None:
    measured = {**MEASURED, "n": {"Other": [{"x": 1.0}]}}
    other = Row("n", "its own", "s", lambda figures: figures["x"])
    table = as_markdown([row(), other], measured, ABSENT, [])
    assert "- (1)" in table
    assert table.endswith("\n1. Other has no x.\n")


def test_more_may_be_better_and_a_number_may_be_a_multiple_of_the_floor() -> None:
    data = as_json([row(more_is_better=True), row(over_floor=True)], MEASURED, ABSENT, [])
    speeds, multiples = data["rows"]
    assert speeds["times_better"] == {"Slow": 0.1, "Fast": 2.0}
    assert multiples["systems"][OURS] == {"median": 3.0, "rounds": [2.0, 4.0, 3.0]}
    assert FLOOR not in multiples["systems"]


def test_a_page_with_a_place_for_the_table_keeps_its_text() -> None:
    page = in_page(
        "# Page\n<!-- begin of the table -->\nold\n<!-- end of the table -->\nend\n", "new\n"
    )
    assert page.startswith("# Page\n")
    assert page.endswith("end\n")
    assert "old" not in page
    assert in_page(page, "new\n") == page
    assert in_page("no place", "new\n") == "new\n"
