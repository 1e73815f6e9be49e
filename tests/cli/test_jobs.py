"""`effectflow show` reports the progress of map-reduce and iterative runs."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.cli.conftest import Command, Ended

JOBS = textwrap.dedent("""
    from pathlib import Path
    from effectflow import Do, Effect, Iterative, MapReduce, do, fail, pure

    def numbers(count: int) -> list[int]:
        return list(range(count))

    def mapped(number: int) -> Effect[object, str, int]:
        return fail("broken") if number == 4 and Path("broken").exists() else pure(number)

    def total(values: list[int]) -> Effect[object, str, int]:
        return pure(sum(values))

    options = {"items": numbers, "map": mapped, "reduce": total, "key": str, "fan_in": 2}
    strict = MapReduce("strict", max_parallel=1, **options)
    lenient = MapReduce("lenient", max_parallel=1, on_item_failure="dead_letter", **options)

    @do
    def shrink(count: int) -> Do[object, str, int]:
        result = yield from lenient.body(count)
        return result.value // 5

    shrinking = Iterative(
        "shrinking", shrink, converged=lambda before, after: before == after, max_rounds=9
    )
""")


def rows(ran: Ended) -> dict[str, str]:
    """Return the rows that `show` printed, by their names."""
    assert ran.code == 0, ran.err
    pairs = [line.split("  ", 1) for line in ran.out.splitlines() if "  " in line]
    return {name: value.strip() for name, value in pairs}


def test_show_reports_phase_items_and_reduce_rounds(effectflow: Command, folder: Path) -> None:
    (folder / "jobs.py").write_text(JOBS)
    (folder / "broken").touch()
    assert effectflow("run", "jobs:strict", "--input", "7", "--run-id", "s").code == 1
    shown = rows(effectflow("show", "s"))
    assert (shown["phase"], shown["items"]) == ("map", "4 done, 1 failed")
    assert shown["reduce"] == "round 2, 3 groups done"

    (folder / "broken").unlink()
    assert effectflow("resume", "s", "--app", "jobs:strict").code == 0
    shown = rows(effectflow("show", "s"))
    assert (shown["phase"], shown["items"]) == ("complete", "7 of 7 done")
    assert shown["reduce"] == "round 3, 7 groups done"


def test_show_reports_dead_letters(effectflow: Command, folder: Path) -> None:
    (folder / "jobs.py").write_text(JOBS)
    (folder / "broken").touch()
    assert effectflow("run", "jobs:lenient", "--input", "7", "--run-id", "l").code == 0

    assert rows(effectflow("show", "l"))["items"] == "6 of 7 done, 1 failed"
    assert effectflow("show", "l", "--json").json["progress"] == {
        "iteration": None,
        "phase": "complete",
        "items_done": 6,
        "items_failed": 1,
        "items_total": 7,
        "reduce_round": 3,
        "groups_done": 7,
    }


def test_show_reports_the_round_of_an_iterative_run(effectflow: Command, folder: Path) -> None:
    (folder / "jobs.py").write_text(JOBS)
    assert effectflow("run", "jobs:shrinking", "--input", "9", "--run-id", "i").code == 0

    shown = rows(effectflow("show", "i"))
    assert shown["round"] == "5"
    assert effectflow("show", "i", "--json").json["progress"]["iteration"] == 5
