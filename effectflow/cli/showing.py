"""What the commands that only look at runs print."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from datetime import datetime

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from effectflow.checkpoint import (
    BeforeStep,
    Checkpoint,
    Completed,
    Entry,
    Failed,
    Finished,
    Interrupted,
    Recorded,
    Resumed,
    ResumePlan,
    RunInfo,
    Started,
    Verification,
)
from effectflow.checkpoint.values import Tree, encode_json
from effectflow.workflows.progress import JobProgress, job_progress

__all__ = [
    "checkpoint_tree",
    "print_json",
    "show_checkpoint",
    "show_history",
    "show_plan",
    "show_runs",
    "show_verifications",
]

_SHOWN = 120


def print_json(tree: Tree) -> None:
    """One JSON document on standard output."""
    sys.stdout.buffer.write(orjson.dumps(tree, option=orjson.OPT_INDENT_2) + b"\n")
    sys.stdout.flush()


def show_runs(console: Console, runs: Sequence[RunInfo], now: float) -> None:
    """A table of runs, newest first."""
    if not runs:
        console.print("No runs in this store. `effectflow demo` makes one.", highlight=False)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("RUN", "WORKFLOW", "STATUS", "ENTRIES", "CREATED", "UPDATED"):
        table.add_column(heading, no_wrap=heading == "RUN")
    for run in runs:
        table.add_row(
            Text(run.run_id),
            Text(run.summary.workflow),
            _status(run, now),
            str(run.length),
            _when(run.summary.created_at),
            _when(run.updated_at),
        )
    console.print(table)


def _status(run: RunInfo, now: float) -> str:
    """The status, and what became of a run whose journal says that it is under way."""
    if run.summary.status == "running" and not run.is_held(now):
        return "crashed, resumable"
    return str(run.summary.status)


def show_checkpoint(console: Console, checkpoint: Checkpoint, durability: str) -> None:
    """Where one run stands."""
    table = Table(box=None, show_header=False, pad_edge=False)
    head = checkpoint.state
    rows = {
        "run": checkpoint.run_id,
        "workflow": f"{checkpoint.workflow} (version {checkpoint.definition.version})",
        "status": str(checkpoint.status),
        "stands at": "before its first step"
        if head is None
        else f"{type(head).__name__}: {head.step}",
        "state": _state(checkpoint),
        **_progress_rows(job_progress(checkpoint)),
        "completed steps": str(len(checkpoint.completed_steps)),
        "begun steps": str(len(checkpoint.metadata.attempts)),
        "resumes": str(checkpoint.metadata.resumes),
        "entries": str(checkpoint.metadata.entries),
        "created": _when(checkpoint.created_at),
        "updated": _when(checkpoint.updated_at),
        "input": _bounded(checkpoint.initial_state),
        "context": _bounded(checkpoint.context),
        "survives": {
            "full": "kill -9 and power loss (durability full)",
            "process": "kill -9, not power loss (durability process)",
        }.get(durability, f"durability {durability}"),
        "digest": checkpoint.digest,
    }
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, Text(value))
    console.print(table)
    finished = checkpoint.finished
    if finished is not None and finished.error is not None:
        error = finished.error
        text = error.traceback or f"{error.type}: {error.message}"
        console.print(Text(f"\n{text.rstrip()}"))
    elif finished is not None:
        console.print(Text(f"\noutput: {_bounded(finished.output, 2000)}"))


def _state(checkpoint: Checkpoint) -> str | None:
    """Where a workflow that goes from state to state stands; None for any other."""
    match checkpoint.kind, checkpoint.current_state:
        case "machine", {"$enum": [_, str(member)]}:
            return member
        case "machine", state:
            return _bounded(state)
        case _:
            return None


def checkpoint_tree(checkpoint: Checkpoint) -> Tree:
    """Where one run stands, as plain data; of a job, how far it has come as well."""
    tree = checkpoint.to_tree()
    progress = job_progress(checkpoint)
    return tree if progress is None else {**tree, "progress": dataclasses.asdict(progress)}


def _progress_rows(progress: JobProgress | None) -> dict[str, str]:
    """How far a job has come; nothing for runs that are no jobs."""
    if progress is None:
        return {}
    rows = {} if progress.iteration is None else {"round": str(progress.iteration)}
    if progress.iteration is None or progress.items_done or progress.items_failed:
        total = "" if progress.items_total is None else f" of {progress.items_total}"
        failed = f", {progress.items_failed} failed" if progress.items_failed else ""
        rows["phase"] = progress.phase
        rows["items"] = f"{progress.items_done}{total} done{failed}"
        rows["reduce"] = f"round {progress.reduce_round}, {progress.groups_done} groups done"
    return rows


def show_history(console: Console, entries: Sequence[Entry]) -> None:
    """The journal, an entry a line, oldest first."""
    for number, entry in enumerate(entries, start=1):
        line = f"{number:>6}  {_when(entry.at)}  {_line(entry)}"
        console.print(Text(line), soft_wrap=True)


def show_verifications(console: Console, verifications: Sequence[Verification]) -> None:
    """A line for each run: good, or what is wrong with it and from where on."""
    for one in verifications:
        if one.problem is None:
            line = f"{one.run_id}: good, {one.length} entries"
        else:
            line = f"{one.run_id}: {one.good} of {one.length} entries are good. {one.problem}"
        console.print(Text(line), soft_wrap=True)
    damaged = sum(one.problem is not None for one in verifications)
    runs = "1 run" if len(verifications) == 1 else f"{len(verifications)} runs"
    console.print(f"{runs} checked, {damaged} damaged", highlight=False)


def show_plan(console: Console, plan: ResumePlan, workflow_name: str) -> None:
    """What a resume would do."""
    console.print(f"skip: {len(plan.skip)} completed steps", highlight=False)
    if plan.is_complete:
        start = "nothing: the run is complete, and a resume gives its recorded output"
    elif plan.start is None:
        start = f"whatever {workflow_name} does next"
    else:
        start = f"{plan.start}{' (again)' if plan.retry_current else ''}"
    console.print(Text(f"start: {start}"), soft_wrap=True)
    if plan.fails_again is not None:
        end = (
            f"the failure of {plan.fails_again} stands, as that is not to be retried, or steps that came "
            "after it have run; to try again, start the work anew, under another id"
        )
        console.print(Text(f"fails again: {end}"), soft_wrap=True)


def _line(entry: Entry) -> str:
    match entry:
        case Started():
            return f"Started      {entry.workflow} version {entry.version}"
        case Resumed(owner):
            return f"Resumed      by {owner}"
        case BeforeStep(step, attempt):
            return f"BeforeStep   {step}, attempt {attempt}"
        case Completed(step, output, duration):
            return f"Completed    {step} in {duration:.3f} s -> {_bounded(output, 60)}"
        case Failed(step, error, retryable):
            kind = "defect " if error.is_defect else ""
            again = "retryable" if retryable else "final"
            return f"Failed       {step}: {kind}{error.type}: {error.message} ({again})"
        case Interrupted(step, in_progress, reason):
            where = "in" if in_progress else "after"
            return f"Interrupted  {where} {step or 'no step'} ({reason})"
        case Recorded(step, value):
            return f"Recorded     {step} = {_bounded(value, 60)}"
        case Finished(status, output, error):
            what = f"{error.type}: {error.message}" if error else _bounded(output, 60)
            return f"Finished     {status}: {what}"


def _bounded(tree: Tree, limit: int = _SHOWN) -> str:
    text = encode_json(tree).decode()
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")
