"""`effectflow top`: who drives runs, how many there are, how fast they end, and what waits longest."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from effectflow.checkpoint import RunInfo
from effectflow.checkpoint.checkpoint import iso_time
from effectflow.checkpoint.errors import printable
from effectflow.checkpoint.values import Tree
from effectflow.cli.access import Access, ServiceOption
from effectflow.cli.command import Answer, command
from effectflow.cli.render import age, table, when
from effectflow.cli.step_lines import WIDTH, cut_to
from effectflow.effects.clock import in_words
from effectflow.observe.overview import (
    MOST_COUNTED,
    Overview,
    Process,
    due_since,
    read_overview,
)
from effectflow.observe.statuses import shown_status

_SECONDS_BETWEEN_PICTURES = 1.0
_MOST_PROCESSES = 20


@command(ServiceOption)
def top(
    access: Access,
    once: Annotated[bool, typer.Option("--once", help="Print one picture, and end.")] = False,
) -> Answer:
    """Show what the workers of a store do, again every second until Ctrl-C."""
    access.check_store()
    console = Console()
    if once or access.as_json or not console.is_terminal:
        found = anyio.run(_read, access)
        return Answer(_tree(found), top_lines(found))
    with suppress(KeyboardInterrupt):
        anyio.run(_watch, access, console)
    return Answer(None)


async def _read(access: Access) -> Overview:
    async with access.store as store:
        return await read_overview(store, time.time())


async def _watch(access: Access, console: Console) -> None:
    """Show the overview again and again, until this is cancelled."""
    async with access.store as store:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                lines = top_lines(await read_overview(store, time.time()))
                live.update(Text("\n".join(map(printable, lines))), refresh=True)
                await anyio.sleep(_SECONDS_BETWEEN_PICTURES)


def top_lines(found: Overview) -> Iterable[str]:
    """Yield an overview as lines of at most 80 columns."""
    rows = [
        ("at", when(found.at)),
        ("runs", ", ".join(_counted(name, count) for name, count in found.counts.items())),
        ("per minute", _rates(found)),
    ]
    if (due := found.oldest_due) is not None:
        late = in_words(found.at - due_since(due))
        text = f"{_named(due)}, {shown_status(due, found.at)}, due for {late}"
        rows.append(("oldest due", text))
    if (waits := found.longest_waiting) is not None:
        since = in_words(found.at - waits.updated_at)
        text = f"{_named(waits)}, for {since}, for {waits.summary.details.waits_for}"
        rows.append(("longest wait", text))
    for name, text in rows:
        yield cut_to(f"{name:<12}  {text or 'none'}", WIDTH)
    yield ""
    processes = (*found.processes, *found.lost)
    if not processes:
        yield "No worker is known, and no process drives a run."
        return
    shown = processes[:_MOST_PROCESSES]
    lost = len(found.processes)
    rows = [_row(one, found.at, is_lost=number >= lost) for number, one in enumerate(shown)]
    lines = table([("PROCESS", "SEEN", "RUNS", "WORKFLOWS"), *rows])
    yield from (cut_to(line, WIDTH) for line in lines)
    if len(processes) > len(shown):
        yield f"and {len(processes) - len(shown)} more processes"


def _counted(name: str, count: int) -> str:
    return f"{count}{'+' if count >= MOST_COUNTED else ''} {name}"


def _rates(found: Overview) -> str:
    more = "+" if found.are_rates_bounded else ""
    return ", ".join(f"{rate:.0f}{more} {status}" for status, rate in found.per_minute.items())


def _named(info: RunInfo) -> str:
    return f"{info.run_id} of {info.summary.workflow}"


def _row(one: Process, now: float, *, is_lost: bool) -> tuple[str, str, str, str]:
    seen = "" if one.seen_at is None else age(max(now - one.seen_at, 0.0))
    limit = "" if one.limit is None else f" of {one.limit}"
    workflows = ", ".join(f"{name} {count}" for name, count in one.runs.items())
    idle = f"none of {', '.join(one.workflows)}"
    state = f"lost {seen}".rstrip() if is_lost else seen
    return one.name or "unknown", state, f"{one.driven}{limit}", workflows or idle


def _tree(found: Overview) -> dict[str, Tree]:
    due, waits = found.oldest_due, found.longest_waiting
    return {
        "at": iso_time(found.at),
        "counts": dict(found.counts),
        "counted_up_to": MOST_COUNTED,
        "per_minute": {str(status): rate for status, rate in found.per_minute.items()},
        "processes": [_process_tree(one) for one in found.processes],
        "lost": [_process_tree(one) for one in found.lost],
        "oldest_due": None
        if due is None
        else {
            "run_id": due.run_id,
            "workflow": due.summary.workflow,
            "status": shown_status(due, found.at),
            "due_since": iso_time(due_since(due)),
        },
        "longest_waiting": None
        if waits is None
        else {
            "run_id": waits.run_id,
            "workflow": waits.summary.workflow,
            "waits_for": waits.summary.details.waits_for,
            "since": iso_time(waits.updated_at),
        },
    }


def _process_tree(one: Process) -> dict[str, Tree]:
    return {
        "process": one.name,
        "runs": dict(one.runs),
        "limit": one.limit,
        "workflows": dict(one.workflows),
        "seen_at": iso_time(one.seen_at),
    }
