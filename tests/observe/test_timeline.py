"""The timeline of a run: bars for its lives, attempts and waits, and their picture."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from effectflow.checkpoint import (
    BeforeStep,
    Completed,
    Entry,
    ErrorRecord,
    Failed,
    Paused,
    Resumed,
    RunInfo,
    RunStatus,
    RunSummary,
    Signalled,
    Started,
    Suspended,
    Waiting,
)
from effectflow.checkpoint.journal_reader import Journal
from effectflow.observe import timeline_of, timeline_svg
from effectflow.observe.recorded_run import RecordedRun
from effectflow.ui.steps import View, steps_of

STARTED = Started("r", "order", "standard", "1", "", None, {}, 1, 0.0)
ERROR = ErrorRecord("Declined", "no account")


def bars_of(
    entries: list[Entry], *, now: float = 100.0, is_held: bool = False
) -> dict[str, object]:
    timeline = timeline_of(entries, now, is_held=is_held)
    return {
        lane.label: [(bar.kind, bar.began, bar.ended) for bar in lane.bars]
        for lane in timeline.lanes
    }


def test_a_submitted_run_is_queued_driven_suspended_and_driven() -> None:
    entries: list[Entry] = [
        STARTED,
        Resumed("pid 1", 10.0),
        BeforeStep("pay", at=10.0),
        Failed("pay", ERROR, True, at=12.0, retry_at=14.0, turn=1),
        BeforeStep("pay", 2, at=14.0, turn=2),
        Completed("pay", 1, 6.0, at=20.0, turn=3),
        Waiting("signal:approval", None, 20.0, topic="signal:approval", turn=3),
        Suspended(21.0),
        Resumed("pid 2", 50.0),
        Signalled("signal:approval", "signal:approval", "k", None, 50.0, turn=4),
        BeforeStep("ship", at=60.0, turn=4),
    ]

    assert bars_of(entries, is_held=True) == {
        "": [
            ("queued", 0.0, 10.0),
            ("driven", 10.0, 21.0),
            ("waiting", 21.0, 50.0),
            ("driven", 50.0, None),
        ],
        "pay": [("failed", 10.0, 12.0), ("retrying", 12.0, 14.0), ("completed", 14.0, 20.0)],
        "signal:approval": [("completed", 20.0, 50.0)],
        "ship": [("running", 60.0, None)],
    }
    # Without a process, nothing of it lasts.
    bars = bars_of(entries)
    assert bars["ship"] == [("interrupted", 60.0, None)]
    assert bars[""] == [
        ("queued", 0.0, 10.0),
        ("driven", 10.0, 21.0),
        ("waiting", 21.0, 50.0),
        ("driven", 50.0, 60.0),
        ("interrupted", 60.0, None),
    ]


def test_the_time_between_a_crash_and_the_resume_is_seen() -> None:
    entries: list[Entry] = [
        STARTED,
        BeforeStep("pay", at=1.0),
        BeforeStep("par[0]/pack", at=5.0),
        Resumed("pid 2", 30.0),
        BeforeStep("pay", 2, at=31.0),
        Completed("pay", 1, 1.0, at=32.0, turn=1),
    ]
    bars = bars_of(entries, is_held=True)
    assert bars[""] == [
        ("driven", 0.0, 5.0), ("interrupted", 5.0, 30.0), ("driven", 30.0, None),
    ]  # fmt: skip
    assert bars["pay"] == [
        ("interrupted", 1.0, 5.0), ("interrupted", 5.0, 31.0), ("completed", 31.0, 32.0),
    ]  # fmt: skip


def test_a_pause_is_a_bar_of_the_run() -> None:
    entries: list[Entry] = [
        STARTED, Paused(5.0, "ann"), Resumed("pid 2", 9.0, by="ann"),
    ]  # fmt: skip
    assert bars_of(entries, is_held=True)[""] == [
        ("driven", 0.0, 5.0), ("paused", 5.0, 9.0), ("driven", 9.0, None),
    ]  # fmt: skip


def test_the_picture_is_valid_and_escapes_names() -> None:
    entries: list[Entry] = [STARTED, BeforeStep('<b>&"\x1b', at=1.0)]

    picture = timeline_svg(timeline_of(entries, 2.0), "run <1>")

    root = ElementTree.fromstring(picture)
    texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert '<b>&"\\x1b' in texts
    assert "run <1>" in texts
    # The run: driven until its last entry; interrupted since then, as no process has it. And the step.
    assert picture.count("<rect") == 1 + 3 + 2


def test_a_clock_that_was_set_back_hides_no_bar() -> None:
    entries: list[Entry] = [
        replace(STARTED, at=90.0),
        BeforeStep("pay", at=50.0),
        Completed("pay", 1, 10.0, at=60.0, turn=1),
    ]
    timeline = timeline_of(entries, 100.0)
    assert (timeline.began, timeline.ended) == (50.0, 100.0)

    info = RunInfo("r", RunSummary("order", RunStatus.RUNNING, 90.0), 90.0, 3, None)
    [pay] = steps_of(RecordedRun(info, Journal(tuple(entries), b"")), View(), 100.0).rows
    assert [bar.kind for bar in pay.bars] == ["completed"]
