"""The tree of the steps of a run, as `show` prints it: in 80 columns, bounded, coloured on a terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from effectflow.checkpoint import BeforeStep, Completed, Entry, ErrorRecord, Failed, Waiting
from effectflow.cli.render import say_lines
from effectflow.cli.step_lines import WIDTH, step_lines
from effectflow.observe import operations_of
from tests.cli.conftest import Command
from tests.cli.services import driven, submitted, write_mall

HOSTILE = ErrorRecord("shop.Declined", "[red]\x1b[31mno\n account " + "x" * 80)


def lines_of(entries: list[Entry], *, now: float = 100.0, is_held: bool = True) -> list[str]:
    shown = step_lines(operations_of(entries), now, is_held=is_held)
    return [re.sub(r"\d\d:\d\d:\d\d", "TIME", one.plain) for one in shown]


def test_steps_are_a_tree_with_times_attempts_and_what_is_waited_for() -> None:
    entries: list[Entry] = [
        BeforeStep("check", at=1.0),
        Completed("check", 5, 0.25, at=1.25),
        BeforeStep("par[0]/pay", at=2.0),
        Failed("par[0]/pay", HOSTILE, True, at=3.0),
        BeforeStep("par[1]/ship", at=2.0),
        BeforeStep("par[1]/ship/pack", at=2.0),
        BeforeStep("par[1]/ship/pack", 2, at=62.0),
        Waiting("par[2]/signal:approval", None, 10.0, topic="signal:approval"),
    ]
    assert lines_of(entries) == [
        "  check                   TIME   0.25s  completed",
        "  par[0]/pay              TIME   1.00s  failed: Declined: [red]\\x1b[31mno...",
        "  par[1]/ship             TIME      2m  running",
        "    pack                  TIME      2m  running, attempt 2",
        "  par[2]/signal:approval  TIME      2m  waiting for signal approval",
    ]
    assert "running" not in "".join(lines_of(entries, is_held=False))


def test_thousands_of_steps_are_shown_by_the_first_the_last_and_what_did_not_complete() -> None:
    entries: list[Entry] = []
    for number in range(2_000):
        path = f"par_traverse[{number}]/quote"
        entries.append(BeforeStep(path, at=1.0))
        if number == 1_000:
            entries.append(Failed(path, HOSTILE, False, at=2.0))
        else:
            entries.append(Completed(path, 1, 1.0, at=2.0))

    lines = lines_of(entries)

    assert len(lines) == 3 + 1 + 1 + 1 + 7
    assert lines[3].split() == ["...", "997", "completed"]
    assert "[1000]" in lines[4]
    assert "[1999]" in lines[-1]
    assert max(map(len, lines)) <= WIDTH


def test_colours_only_on_a_terminal() -> None:
    entries: list[Entry] = [BeforeStep("pay", at=1.0), Failed("pay", HOSTILE, True, at=3.0)]
    for is_terminal in (True, False):
        out = io.StringIO()
        console = Console(
            file=out,
            force_terminal=is_terminal,
            color_system="standard" if is_terminal else "auto",
            width=80,
        )
        say_lines(step_lines(operations_of(entries), 5.0, is_held=True), console)
        assert ("\x1b[31mfailed\x1b[0m" in out.getvalue()) is is_terminal


def test_show_has_the_tree(effectflow: Command, folder: Path) -> None:
    mall = write_mall(folder)
    submitted(mall, "order", 5, "o1")
    driven(mall, "o1")
    shown = effectflow("show", "o1", "--app", "mall:app").out
    assert re.search(r"\nsteps, since [-0-9]+:\n  note +[:0-9]+ +0.\d\ds  completed\n", shown)
    assert re.search(
        r"\n  signal:approval  [:0-9]+ +\d.\d\ds  waiting for signal approval\n", shown
    )
