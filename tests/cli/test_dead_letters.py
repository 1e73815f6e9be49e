"""`effectflow show` reports the progress of map-reduce and iterative runs."""

from __future__ import annotations

import textwrap
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Ended

JOBS = textwrap.dedent("""
    from pathlib import Path
    from effectflow import Do, Effect, do, fail, pure
    from effectflow.iterative import Iterative
    from effectflow.mapreduce import MapReduce

    def numbers(count: int) -> list[int]:
        return list(range(count))

    def mapped(number: int) -> Effect[object, str, int]:
        return fail("broken") if number == 4 and Path("broken").exists() else pure(number)

    def total(values: list[int]) -> Effect[object, str, int]:
        return pure(sum(values))

    options = {"items": numbers, "map": mapped, "reduce": total, "key": str, "fan_in": 2}
    strict = MapReduce("strict", limit=1, **options)
    lenient = MapReduce("lenient", limit=1, on_item_failure="dead_letter", **options)

    bounded = MapReduce(
        "bounded", limit=1, on_item_failure="dead_letter", max_failures=0, **options
    )

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
    assert (shown["phase"], shown["items"]) == ("map", "4 of 7 done, 1 failed")
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
    progress = effectflow("show", "l", "--json").json["progress"]
    assert progress.pop("per_second") > 0
    assert progress == {
        "iteration": None,
        "phase": "complete",
        "items_done": 6,
        "items_failed": 1,
        "items_total": 7,
        "reduce_round": 3,
        "groups_done": 7,
        "is_reduced": True,
    }


def test_show_reports_the_round_of_an_iterative_run(effectflow: Command, folder: Path) -> None:
    (folder / "jobs.py").write_text(JOBS)
    assert effectflow("run", "jobs:shrinking", "--input", "9", "--run-id", "i").code == 0

    shown = rows(effectflow("show", "i"))
    assert shown["round"] == "5"
    assert effectflow("show", "i", "--json").json["progress"]["iteration"] == 5


@pytest.fixture
def broken(effectflow: Command, folder: Path) -> Path:
    """A complete run `l` whose item 4 failed, and the file that breaks it."""
    (folder / "jobs.py").write_text(JOBS)
    (folder / "broken").touch()
    assert effectflow("run", "jobs:lenient", "--input", "7", "--run-id", "l").code == 0
    return folder / "broken"


@pytest.mark.usefixtures("broken")
def test_dead_letters_are_shown_with_the_item_and_every_failure(effectflow: Command) -> None:
    ran = effectflow("dead-letters", "l")
    assert ran.code == 0, ran.err
    item, failure, *rest = ran.out.splitlines()
    assert item == "map[4]  4"
    assert failure.endswith("str: broken")
    assert rest == [
        "1 dead letter",
        "Retry them with: effectflow dead-letters l --retry --app jobs",
        "To give them up, write --drop instead of --retry.",
    ]

    [letter] = effectflow("dead-letters", "l", "4", "--json").json
    assert effectflow("dead-letters", "--latest", "4", "--json").json == [letter]
    [attempt] = letter.pop("failures")
    assert letter == {"key": "4", "path": "map[4]", "item": 4}
    assert (attempt["type"], attempt["message"]) == ("str", "broken")
    began, ended = map(datetime.fromisoformat, (attempt["began_at"], attempt["ended_at"]))
    assert (began.utcoffset(), began <= ended) == (timedelta(0), True)


@pytest.mark.usefixtures("broken")
def test_show_counts_dead_letters_and_names_the_command(effectflow: Command) -> None:
    assert rows(effectflow("show", "l"))["dead letters"] == "1: effectflow dead-letters l"
    assert effectflow("show", "l", "--json").json["dead_letters"] == 1
    assert effectflow("show", "l", "--at", "3", "--json").json["dead_letters"] == 0


def test_a_run_with_dead_letters_names_the_command(effectflow: Command, folder: Path) -> None:
    (folder / "jobs.py").write_text(JOBS)
    (folder / "broken").touch()
    for workflow, code in (("lenient", 0), ("bounded", 1)):
        where = ("--run-id", workflow, "--store", "jobs.db")
        ran = effectflow("run", f"jobs:{workflow}", "--input", "7", *where)

        assert ran.code == code
        named = f"effectflow dead-letters {workflow} --store jobs.db"
        assert f"Some items failed and were set aside. See them with: {named}\n" in ran.out
        assert f"1: {named}\n" in effectflow("show", workflow, "--store", "jobs.db").out
    assert "TooManyFailures: more than 0 items" in ran.out


def test_dead_letters_are_retried(effectflow: Command, broken: Path) -> None:
    again = effectflow("dead-letters", "l", "--retry", "--app", "jobs")
    assert "dead_letters=(DeadLetter(key='4', item=4, error='broken')" in again.out
    broken.unlink()
    ran = effectflow("dead-letters", "l", "--retry", "4", "--app", "jobs:lenient", "--json")

    assert (ran.code, ran.json["status"]) == (0, "completed")
    assert effectflow("dead-letters", "l").out == "0 dead letters\n"
    assert "retries dead letters" in effectflow("history", "l").out
    shown = rows(effectflow("show", "l"))
    assert (shown["items"], shown.get("dead letters")) == ("7 of 7 done", None)


@pytest.mark.usefixtures("broken")
def test_dead_letters_are_dropped(effectflow: Command) -> None:
    ran = effectflow("dead-letters", "l", "4", "--drop", "--app", "jobs")

    assert (ran.code, "JobResult(value=17, items=6, dead_letters=())" in ran.out) == (0, True)
    assert effectflow("dead-letters", "l", "--json").json == []


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["l", "5"], "no dead letters with the keys '5'", 2),
        (["l", "4", "9", "--retry", "--app", "jobs"], "no dead letters with the keys '9'", 2),
        (["l", "--retry", "--drop"], "either --retry or --drop", 2),
        (["l", "--retry"], "try --app jobs", 2),
        (["missing"], "missing", 4),
    ],
)
def test_a_wrong_use_of_dead_letters_is_rejected(
    effectflow: Command, words: list[str], message: str, code: int
) -> None:
    ran = effectflow("dead-letters", *words)

    assert ran.code == code
    assert message in ran.err


def test_list_tells_runs_with_dead_letters(effectflow: Command, broken: Path) -> None:
    assert "completed, 1 dead" in effectflow("list").out
    broken.unlink()
    effectflow("dead-letters", "l", "--retry", "--app", "jobs")

    assert "dead" not in effectflow("list").out.replace("dead-letters", "")
    assert [run["dead_letters"] for run in effectflow("list", "--json").json] == [0]
