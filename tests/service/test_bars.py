"""The bars of `progress()`: what they count, and which library draws them."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from effectflow import Checkpoints, Do, Effect, par_traverse, progress, pure, sleep, step, workflow
from effectflow.checkpoint import Observer
from effectflow.mapreduce import MapReduce
from effectflow.service.progress import Lines, ProgressObserver, RichBars
from effectflow.stores import MemoryStore


@dataclass(frozen=True)
class Env:
    checkpoints: Checkpoints


@dataclass
class Bars:
    """Bars that only remember what they were told."""

    shown: list[tuple[int, int | None, str]] = field(default_factory=list[Any])
    notes: list[str] = field(default_factory=list[str])
    closed: list[str] = field(default_factory=list[str])

    def show(self, run_id: str, done: int, total: int | None, what: str, note: str) -> None:
        self.shown.append((done, total, what))
        self.notes.append(note)

    def close(self, run_id: str) -> None:
        self.closed.append(run_id)


broken: set[int] = set()


@step
def double(number: int) -> Effect[object, ValueError, int]:
    if number in broken:
        raise ValueError(number)
    return pure(number * 2)


@workflow
def doubles(numbers: list[int]) -> Do[object, ValueError, list[int]]:
    return (yield from par_traverse(numbers, double, limit=1))


def up_to(count: int) -> range:
    return range(count)


total = MapReduce(
    "total",
    items=up_to,
    map=double,
    reduce=lambda values: pure(sum(values)),
    key=str,
    limit=1,
)


@workflow
def one_after_another(count: int) -> Do[object, ValueError, None]:
    for number in range(count):
        yield from double(number)
    yield from sleep(0.001)


def env_of(store: MemoryStore, observer: Observer) -> Env:
    return Env(Checkpoints(store, observers=[observer]))


def test_a_bar_counts_the_items_of_a_job_and_not_what_was_done_before() -> None:
    store, first, second = MemoryStore(), Bars(), Bars()
    broken.add(3)
    with pytest.raises(ValueError, match="3"):
        doubles.start([1, 2, 3, 4, 5], run_id="r").run_sync(env_of(store, ProgressObserver(first)))
    assert first.shown == [(0, 5, "items"), (1, 5, "items"), (2, 5, "items"), (3, 5, "items")]
    assert first.notes[-1].startswith("1 failed, ")
    assert first.closed == ["r"]

    broken.clear()
    doubles.resume("r").run_sync_or_raise(env_of(store, ProgressObserver(second)))
    # The total comes with the first step that this life begins, so what is skipped has no speed.
    assert second.shown[:3] == [(1, None, "items"), (2, None, "items"), (2, 5, "items")]
    assert second.notes[:3] == ["", "", ""]
    assert second.shown[-1] == (5, 5, "items")


def test_a_map_reduce_and_plain_steps_have_bars_too() -> None:
    jobs, steps = Bars(), Bars()
    total.start(3, run_id="r").run_sync(env_of(MemoryStore(), ProgressObserver(jobs)))
    assert (3, 3, "items") in jobs.shown
    one_after_another.start(2, run_id="r").run_sync(env_of(MemoryStore(), ProgressObserver(steps)))
    assert steps.shown == [(1, None, "steps"), (2, None, "steps")]


def test_rich_draws_the_bars_of_a_terminal() -> None:
    text = io.StringIO()
    bars = RichBars(Console(file=text, force_terminal=True, width=80))
    doubles.start([1, 2, 3]).run_sync(env_of(MemoryStore(), ProgressObserver(bars)))
    assert "items" in text.getvalue()
    assert "3/3" in text.getvalue()
    # The cursor is shown again.
    assert text.getvalue().rstrip().endswith("\x1b[?25h")


def test_tqdm_draws_the_bars_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def bar(**options: Any) -> Any:
        methods = {name: lambda *_: None for name in ("set_postfix_str", "close")}
        made.append(SimpleNamespace(**options, n=0, **methods))
        return made[-1]

    tqdm, auto = ModuleType("tqdm"), ModuleType("tqdm.auto")
    auto.tqdm = bar  # type: ignore[attr-defined]
    tqdm.__spec__ = SimpleNamespace()  # type: ignore[assignment]
    for name, module in {"ipykernel": ModuleType("x"), "tqdm": tqdm, "tqdm.auto": auto}.items():
        monkeypatch.setitem(sys.modules, name, module)
    doubles.start([1, 2, 3]).run_sync(env_of(MemoryStore(), progress()))
    assert [(one.n, one.total) for one in made] == [(3, 3)]


def test_without_a_terminal_a_bar_is_a_line_at_times_and_at_the_end(
    capfd: pytest.CaptureFixture[str],
) -> None:
    doubles.start([1, 2, 3]).run_sync(env_of(MemoryStore(), progress()))
    # The run takes less than two seconds, so the last line is the only one.
    assert capfd.readouterr() == ("", "3 of 3 items done in 0s\n")
    one_after_another.start(2).run_sync(env_of(MemoryStore(), progress()))
    assert capfd.readouterr() == ("", "")


def test_lines_count_one_step_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr("effectflow.service.progress._SECONDS_BETWEEN_LINES", 0.0)
    lines = ProgressObserver(Lines(said.append))
    one_after_another.start(1).run_sync(env_of(MemoryStore(), lines))
    assert [line.partition(",")[0] for line in said] == ["1 step done", "1 step done in 0s"]
