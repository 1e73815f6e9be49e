"""`effectflow timeline`: bars in the terminal, and a picture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.cli.services import driven, submitted, write_mall

APP = ("--app", "mall:app")


@pytest.fixture(autouse=True)
def waiting(folder: Path) -> None:
    mall = write_mall(folder)
    submitted(mall, "order", 5, "o1")
    driven(mall, "o1")


def test_the_lanes_of_a_run_are_shown_as_bars_in_80_columns(effectflow: Command) -> None:
    ran = effectflow("timeline", "o1", *APP)

    assert ran.code == 0, ran
    heading, run, note, signal, empty, legend = ran.out.splitlines()
    assert re.fullmatch(r"20\S+ \S+ to 20\S+ \S+, \d.\d\ds", heading)
    assert re.fullmatch(r"o1 {26}  [-=.]{41,42} * \d.\d\ds", run)
    assert re.fullmatch(r"  note {22}  +#+ * 0.\d\ds", note)
    assert re.fullmatch(r"  signal:approval {11}  +\.+ * \d.\d\ds", signal)
    assert empty == ""
    assert legend == "- queued   = driven   . waiting   # completed"
    assert max(map(len, ran.out.splitlines())) <= 80
    assert not re.search("\x1b", ran.out)
    lanes = effectflow("timeline", "o1", *APP, "--json").json["lanes"]
    assert [(lane["label"], lane["depth"]) for lane in lanes] == [
        ("", 0), ("note", 1), ("signal:approval", 1),
    ]  # fmt: skip
    assert lanes[2]["bars"][0]["ended_at"] is None


def test_a_picture_is_written(effectflow: Command, folder: Path) -> None:
    ran = effectflow("timeline", "o1", *APP, "--svg", "o1.svg")
    assert ran.code == 0, ran
    assert (folder / "o1.svg").read_text().startswith("<svg ")
    refused = effectflow("timeline", "o1", *APP, "--svg", "missing/o1.svg")
    assert refused.code == 2
    assert "cannot write missing/o1.svg" in refused.err
