"""`effectflow check`: the gate before a deployment."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.cli.conftest import Command

SHOP = textwrap.dedent("""
    from dataclasses import dataclass

    from effectflow import App, Checkpoints, Do, Effect, fail, pure, step, workflow
    from effectflow.stores import SqliteStore

    @dataclass(frozen=True)
    class Shop:
        checkpoints: Checkpoints

    def environment(checkpoints: Checkpoints) -> Shop:
        return Shop(checkpoints)

    @step
    def charge(amount: int) -> Effect[object, str, int]:
        return pure(amount)

    @step
    def ship(amount: int) -> Effect[object, str, str]:
        return fail("no carrier")

    @workflow
    def order(amount: int) -> Do[Shop, str, str]:
        paid = yield from charge(amount)
        return (yield from ship(paid))

    @workflow
    def refund(amount: int) -> Do[Shop, str, int]:
        return (yield from charge(-amount))
""")

APP = "\napp = App[Shop]([order], environment=Shop, checkpoints=Checkpoints(SqliteStore('shop.db')))\n"


@pytest.fixture
def runs(folder: Path, effectflow: Command) -> None:
    """Record two runs of `order` that have failed to ship, in `shop.db`."""
    (folder / "before.py").write_text(SHOP)
    for amount in ("5", "7"):
        ran = effectflow(
            *("run", "before:order", "--input", amount, "--run-id", f"order-{amount}"),
            *("--store", "shop.db"),
        )
        assert ran.code == 1


def renamed(code: str) -> str:
    return code.replace("def charge", "def bill").replace("charge(", "bill(")


@pytest.mark.usefixtures("runs")
def test_code_that_fits_all_runs_passes(effectflow: Command, folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP + APP)

    checked = effectflow("check", "shop:app")

    assert (checked.code, checked.out) == (0, "2 runs checked: 2 fitting\n")


@pytest.mark.usefixtures("runs")
def test_a_misspelt_workflow_does_not_pass(effectflow: Command, folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP + APP)

    refused = effectflow("check", "shop:app", "--workflow", "ordr")

    assert refused.code == 2
    assert "'shop:app' has no workflow 'ordr', nor has a run here; it has: order" in refused.err


@pytest.mark.usefixtures("runs")
def test_runs_that_would_diverge_are_listed_by_what_is_recorded_and_reached(
    effectflow: Command, folder: Path
) -> None:
    (folder / "shop.py").write_text(renamed(SHOP) + APP)
    before = (folder / "shop.db").read_bytes()

    checked = effectflow("check", "shop:app")

    assert (checked.code, checked.err) == (4, "")
    assert checked.out.splitlines() == [
        "order: 'charge' is recorded, and now 'bill' is reached (2 runs diverging)",
        "  order-7, order-5",
        "2 runs checked: 0 fitting, 2 diverging",
    ]
    assert effectflow("check", "shop:app", "--json").json == {
        "runs": 2,
        "all_fit": False,
        "misfits": [
            {
                "verdict": "diverging",
                "workflow": "order",
                "reason": "'charge' is recorded, and now 'bill' is reached",
                "recorded": "charge",
                "reached": ["bill"],
                "run_ids": ["order-7", "order-5"],
            }
        ],
    }
    assert (folder / "shop.db").read_bytes() == before


@pytest.mark.usefixtures("runs")
def test_a_run_whose_workflow_the_app_does_not_have_does_not_pass(
    effectflow: Command, folder: Path
) -> None:
    (folder / "shop.py").write_text(SHOP + APP.replace("order", "refund"))

    checked = effectflow("check", "shop:app")

    assert checked.code == 4
    assert "order: the App has no such workflow; it has: refund (2 runs unknown)" in checked.out
    assert effectflow("check", "shop:app", "--workflow", "refund").code == 0


@pytest.mark.usefixtures("runs")
def test_a_module_or_a_workflow_answers_for_its_own_runs(effectflow: Command, folder: Path) -> None:
    (folder / "shop.py").write_text(renamed(SHOP))

    store = ("--store", "shop.db")
    assert effectflow("check", "shop", *store).code == 4
    assert effectflow("check", "shop:order", *store).code == 4
    other = effectflow("check", "shop:refund", *store)
    assert (other.code, other.out) == (0, "0 runs checked: 0 fitting\n")


@pytest.mark.usefixtures("runs")
def test_an_app_is_checked_against_another_store(effectflow: Command, folder: Path) -> None:
    (folder / "shop.py").write_text(renamed(SHOP) + APP.replace("shop.db", "elsewhere.db"))

    assert "elsewhere.db does not exist" in effectflow("check", "shop:app").err
    assert effectflow("check", "shop:app", "--store", "shop.db").code == 4
    assert not (folder / "elsewhere.db").exists()


@pytest.mark.usefixtures("runs")
def test_exported_runs_are_golden_journals(effectflow: Command, folder: Path) -> None:
    exported = folder / "journals"
    exported.mkdir()
    done = ("before:refund", "--input", "5", "--run-id", "refund-5", "--store", "shop.db")
    assert effectflow("run", *done).code == 0
    output = ("--output", "journals/runs.jsonl")
    assert effectflow("export", "--store", "shop.db", *output).code == 0
    (folder / "shop.db").unlink()
    (folder / "fits.py").write_text(SHOP)
    (folder / "shop.py").write_text(renamed(SHOP))

    assert effectflow("check", "fits", "--journals", "journals").out == (
        "3 runs checked: 3 fitting\n"
    )
    checked = effectflow("check", "shop", "--journals", "journals/runs.jsonl")
    assert checked.code == 4
    # A complete run is checked, too.
    assert (
        "refund: 'charge' is recorded, and now 'bill' is reached (1 run diverging)" in checked.out
    )
    archived = ("archive", "refund-5", "--output", "journals/refund.jsonl.gz")
    assert effectflow("import", "journals/runs.jsonl", "--store", "copy.db").code == 0
    assert effectflow(*archived, "--store", "copy.db").code == 0
    checked = effectflow("check", "shop", "--journals", "journals/refund.jsonl.gz")
    assert "1 run checked: 0 fitting, 1 diverging" in checked.out
    missing = effectflow("check", "shop", "--journals", "nowhere")
    assert (missing.code, missing.err) == (
        2,
        "effectflow: cannot read nowhere: No such file or directory\n",
    )
    empty = folder / "empty"
    empty.mkdir()
    nothing = effectflow("check", "shop", "--journals", "empty")
    assert (nothing.code, nothing.err) == (2, "effectflow: there are no exported runs in empty\n")
