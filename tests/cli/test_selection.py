"""Commands that act on many runs: which ones, the question above ten, and what is reported."""

from __future__ import annotations

import json
import sys
import textwrap
from importlib import import_module
from io import StringIO
from pathlib import Path

import anyio
import pytest

from effectflow.observe import run_filters
from tests.cli.conftest import Command, Ended

SHOP = textwrap.dedent("""
    from dataclasses import dataclass

    from effectflow import App, Checkpoints, Do, Effect, effect, step, workflow
    from effectflow.stores import SqliteStore


    class Declined(Exception):
        pass


    @dataclass(frozen=True)
    class Shop:
        checkpoints: Checkpoints


    @effect(errors=Declined)
    def ask_bank(shop: Shop, amount: int) -> int:
        if amount < 0:
            raise Declined("no account")
        return amount


    @step
    def pay(amount: int) -> Effect[Shop, Declined, int]:
        return ask_bank(amount)


    @workflow
    def order(amount: int) -> Do[Shop, Declined, int]:
        return (yield from pay(amount))


    app = App([order], environment=Shop, checkpoints=Checkpoints(SqliteStore("shop.db")))


    async def start(**inputs: int) -> None:
        async with app.checkpoints.store:
            for run_id, amount in inputs.items():
                context = {"tenant": "acme" if amount % 2 else "blue"}
                await order.start(amount, run_id=run_id, context=context).run(
                    Shop(app.checkpoints)
                )
""")
APP = ("--app", "till:app")


@pytest.fixture(autouse=True)
def till(folder: Path) -> None:
    (folder / "till.py").write_text(SHOP)


def start(**inputs: int) -> None:
    till = import_module("till")

    async def main() -> None:
        await till.start(**inputs)

    anyio.run(main)


def rows(ran: Ended) -> list[dict[str, str]]:
    return [json.loads(line) for line in ran.out.splitlines()]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_filters_choose_the_runs_and_each_is_reported(
    effectflow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(a=-1, b=-2, c=3, d=-3)
    # The pages are read one after the other.
    monkeypatch.setattr(run_filters, "_PAGE", 1)
    chosen = ("--status", "failed", "--context", "tenant=acme", "--since", "1h", *APP)
    shown = effectflow("retry", "--dry-run", *chosen)
    assert shown.code == 0
    assert [line.split("  ")[0] for line in shown.out.splitlines()] == [
        "d", "a", "This would retry 2 runs.",
    ]  # fmt: skip
    assert [row["run_id"] for row in rows(effectflow("retry", "--dry-run", "--json", *chosen))] == [
        "d",
        "a",
    ]
    named = effectflow("retry", "a", "nowhere", "--dry-run", *APP)
    assert (named.code, "no run 'nowhere'" in named.err) == (4, True)
    assert [line.split(", ")[0] for line in named.out.splitlines()] == [
        "a  order",
        "This would retry 1 run.",
    ]
    retried = effectflow("retry", "--by", "ann", "--json", *chosen)
    assert (retried.code, rows(retried)) == (
        0,
        [{"run_id": "d", "by": "ann"}, {"run_id": "a", "by": "ann"}],
    )
    again = effectflow("retry", *chosen)
    assert (again.code, again.out) == (0, "")
    left = effectflow("list", "--status", "failed", "--json", *APP).json
    assert [run["run_id"] for run in left] == ["b"]


def test_a_run_that_fails_is_reported_and_the_others_go_on(effectflow: Command) -> None:
    start(a=-1, c=3)
    ran = effectflow("retry", "nothing", "c", "a", *APP)
    assert ran.code == 4
    assert "no run 'nothing'" in ran.err
    assert "'c'" in ran.err
    assert ran.out.startswith("Run a: retried by ")
    as_json = rows(effectflow("rerun", "nothing", "a", "--json", *APP))
    assert "no run 'nothing'" in as_json[0]["error"]
    assert as_json[1]["forked_from"] == "a"
    assert effectflow("resume", as_json[1]["run_id"], *APP).code == 1


@pytest.mark.parametrize("by_ids", [True, False])
def test_above_ten_runs_the_command_asks(
    effectflow: Command, monkeypatch: pytest.MonkeyPatch, by_ids: bool
) -> None:
    inputs = {f"r{number:02}": -1 for number in range(11)}
    start(**inputs)
    chosen = [*inputs] if by_ids else ["--status", "failed"]
    refused = effectflow("retry", *chosen, *APP)
    assert (refused.code, refused.out) == (2, "")
    assert "this would retry 11 runs: add --yes" in refused.err
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    declined = effectflow("retry", *chosen, *APP)
    assert (declined.code, "nothing was changed" in declined.err) == (2, True)
    assert len(effectflow("list", "--status", "failed", "--json", *APP).json) == 11
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    accepted = effectflow("retry", *chosen, *APP)
    assert (accepted.code, len(accepted.out.splitlines())) == (0, 11)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either a run id, --latest or --status"),
        (["r1", "--status", "failed"], "give either the ids of runs or filters such as --status"),
        (["--latest", "--since", "2h"], "give either the ids of runs or filters such as --since"),
        (["r1", "--latest"], "give either a run id, --latest or --status"),
        (["--status", "lost"], "--status takes one of"),
        (["--before", "soon"], "--before takes a duration, such as"),
        (["--workflow", "ordr"], "no run of workflow 'ordr'; its newest runs are of: order"),
    ],
)
def test_what_selects_no_runs_is_bad_use(
    effectflow: Command, arguments: list[str], said: str
) -> None:
    start(r1=-1)
    ran = effectflow("cancel", *arguments, *APP)
    assert (ran.code, said in ran.err) == (2, True), ran


def test_runs_are_deleted_and_pruned(effectflow: Command) -> None:
    start(a=1, b=-1, c=2, d=3, e=4)
    assert effectflow("delete", "a", *APP).out == "Run a was deleted.\n"
    again = effectflow("delete", "a", *APP)
    assert (again.code, "no run 'a'" in again.err) == (4, True)
    dry = effectflow("prune", "--keep", "1", "--dry-run", *APP)
    assert [line.split("  ")[0] for line in dry.out.splitlines()] == [
        "d", "c", "This would delete 2 runs.",
    ]  # fmt: skip
    assert effectflow("prune", "--before", "30d", "--json", *APP).json == {"deleted": 0}
    assert effectflow("prune", "--keep", "1", *APP).out == "2 runs deleted\n"
    assert [run["run_id"] for run in effectflow("list", "--json", *APP).json] == ["e", "b"]
    deleted = effectflow("delete", "--status", "failed", "--json", *APP)
    assert rows(deleted) == [{"run_id": "b", "deleted": True}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say which runs stay: an age, a number of runs to keep, or both"),
        (["--before", "soon"], "--before takes a duration"),
        (["--keep", "1", "--status", "running"], "only completed, cancelled and failed"),
        (["--keep", "1", "--workflow", "ordr"], "no run of workflow 'ordr'"),
    ],
)
def test_what_prunes_too_much_is_bad_use(
    effectflow: Command, arguments: list[str], said: str
) -> None:
    start(r1=1)
    ran = effectflow("prune", *arguments, *APP)
    assert (ran.code, said in ran.err) == (2, True), ran
