"""`plan` and `resume` count the same steps as done before."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.cli.conftest import Command

TASKS = textwrap.dedent("""
    from pathlib import Path

    from effectflow import Do, Effect, do, fail, pure, step, workflow
    from effectflow.graphs import StateGraph
    from effectflow.iterative import Iterative
    from effectflow.mapreduce import MapReduce


    def gate(value: int) -> Effect[object, str, int]:
        return pure(value) if Path("key").exists() else fail("closed")


    @step
    def first(value: int) -> Effect[object, str, int]:
        return pure(value)


    @step
    def refused(value: int) -> Effect[object, str, int]:
        return fail("refused")


    @step
    def gated(value: int) -> Effect[object, str, int]:
        return gate(value)


    @workflow
    def code(value: int) -> Do[object, str, int]:
        yield from refused(value).fallback(0)
        yield from first(value)
        return (yield from gated(value))


    @step
    @do
    def inside(value: int) -> Do[object, str, int]:
        yield from first(value)
        return (yield from gated(value))


    @step
    @do
    def whole(value: int) -> Do[object, str, int]:
        yield from first(value)
        return (yield from first(value))


    @workflow
    def deep(value: int) -> Do[object, str, int]:
        yield from whole(value)
        return (yield from inside(value))


    @workflow
    def outer(value: int) -> Do[object, str, int]:
        yield from first(value)
        return (yield from deep.call(value))


    def numbers(count: int) -> list[int]:
        return list(range(count))


    def mapped(number: int) -> Effect[object, str, int]:
        return gate(number) if number == 5 else pure(number)


    def total(values: list[int]) -> Effect[object, str, int]:
        return pure(sum(values))


    options = {"items": numbers, "map": mapped, "reduce": total, "key": str, "fan_in": 2}
    job = MapReduce("job", limit=2, **options)
    lenient = MapReduce("lenient", limit=1, on_item_failure="dead_letter", **options)


    @workflow
    def after_job(count: int) -> Do[object, str, int]:
        result = yield from lenient.body(count)
        return (yield from gated(result.value))


    @do
    def shrink(count: int) -> Do[object, str, int]:
        yield from first(count)
        return (yield from gated(count) if count == 3 else first(count - 1))


    rounds = Iterative("rounds", shrink, converged=lambda a, b: a == b, max_rounds=9)


    def join(state: int, results: dict[str, int]) -> int:
        return sum(results.values())


    graph = (
        StateGraph("graph")
        .parallel("whole", {"x": pure, "y": pure}, merge=join)
        .parallel("count", {"x": pure, "y": pure, "z": gate}, merge=join)
        .edge("whole", "count")
        .entry("whole")
        .exit("count")
        .build()
    )
""")

STARTS = {
    "code": ("gated (again)", 1),
    "deep": ("inside (again, after 1 completed step inside)", 2),
    "outer": ("deep (again, after 2 completed steps inside)", 3),
    "job": ("map[5]/mapped (again)", None),
    "after_job": ("gated (again)", 15),
    "rounds": ("round#6 (again, after 1 completed step inside)", 6),
    "graph": ("count (again, after 2 completed steps inside)", 3),
}


@pytest.mark.parametrize("name", STARTS)
def test_plan_and_resume_count_the_same_completed_steps(
    effectflow: Command, folder: Path, name: str
) -> None:
    (folder / "tasks.py").write_text(TASKS)
    assert effectflow("run", f"tasks:{name}", "--input", "8", "--run-id", "r").code == 1

    start, skipped = STARTS[name]
    assert f"start: {start}\n" in effectflow("plan", "r", "--app", "tasks").out
    planned = effectflow("plan", "r", "--app", "tasks", "--json").json["skip"]
    without_code = effectflow("plan", "r", "--json").json["skip"]

    (folder / "key").touch()
    resumed = effectflow("resume", "r", "--app", "tasks", "--json").json
    assert resumed["status"] == "completed"
    assert resumed["steps_skipped"] == len(planned) == len(without_code)
    assert sorted(planned) == sorted(without_code)
    assert skipped in (len(planned), None)

    # The run is complete now, so neither of them replays it.
    planned = effectflow("plan", "r", "--app", "tasks", "--json").json["skip"]
    resumed = effectflow("resume", "r", "--app", "tasks", "--json").json
    assert (resumed["steps_run"], resumed["steps_skipped"]) == (0, len(planned))
