"""What the commands print: text that is safe to show, tables, and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime

import orjson
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from effectflow.checkpoint import (
    BeforeStep,
    BranchesEnded,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    Completed,
    Decided,
    Entry,
    Failed,
    Finished,
    Interrupted,
    Published,
    Repair,
    Resumed,
    ResumePlan,
    RunInfo,
    RunStatus,
    RunSummary,
    Signalled,
    Started,
    Suspended,
    Verification,
    Waiting,
)
from effectflow.checkpoint.checkpoint import iso_time
from effectflow.checkpoint.entries import write_entry
from effectflow.checkpoint.errors import printable
from effectflow.checkpoint.recording import RecordedDeadLetter, Recording
from effectflow.checkpoint.values import Tree, plain_tree, render_tree
from effectflow.cli.suggestions import message_of, suggested
from effectflow.effects.paths import StepPath


def say(text: str, console: Console | None = None) -> None:
    """Print text on separate lines, escaped, without markup or line wrapping."""
    shown = Text(printable(text, keep="\n\t"))
    (console or Console()).print(shown, soft_wrap=True)


def say_line(text: str, console: Console) -> None:
    """Print text on one line: line breaks are escaped, too."""
    say(printable(text), console)


def print_json(tree: object, *, on_one_line: bool = False) -> None:
    """Print one JSON document on standard output."""
    try:
        data = orjson.dumps(tree, option=0 if on_one_line else orjson.OPT_INDENT_2)
    except TypeError:
        # This module escapes lone surrogates, such as those in messages about file names.
        data = json.dumps(tree, indent=None if on_one_line else 2).encode()
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.flush()


_TIMES = ("at", "retry_at", "until")
"""The fields of entries that are times."""

CRASHED = "crashed"
"""The status to show for a run that is recorded as running, but is not held by a live process."""


def shown_status(run: RunInfo, now: float) -> str:
    """Return the status of a run as the commands show it: the recorded status, or `crashed`."""
    status = run.summary.status
    return CRASHED if status is RunStatus.RUNNING and not run.is_held(now) else str(status)


def show_runs(console: Console, runs: Sequence[RunInfo], now: float) -> None:
    """Print a table of runs. With names of ordinary length, it fits 80 columns, except for notes."""
    rows = [("RUN", "WORKFLOW", "STATUS", "ENTRIES", "UPDATED", "")]
    for run in runs:
        status = shown_status(run, now)
        if run.summary.dead_letters:
            status += f", {run.summary.dead_letters} dead"
        updated, note = age(now - run.updated_at), _note(run.summary, now)
        rows.append((run.run_id, run.summary.workflow, status, str(run.length), updated, note))
    say_table(rows, console)


def _note(summary: RunSummary, now: float) -> str:
    """Return why a run does not continue now, or ""."""
    left = None if summary.due_at is None else summary.due_at - now
    if summary.blocked:
        again = "now" if left is None or left <= 0 else f"in {duration(left)}"
        return f"blocked, tried again {again}: {summary.blocked}"
    if summary.waits_for:
        until = "" if left is None else f", at most {duration(left)}" if left > 0 else "; is due"
        return f"waits for {summary.waits_for}{until}"
    if summary.status is RunStatus.PENDING and left is not None and left > 0:
        return f"begins in {duration(left)}"
    return ""


def run_tree(info: RunInfo, now: float) -> dict[str, Tree]:
    """Return one line about a run as plain data."""
    summary = info.summary
    return {
        "run_id": info.run_id,
        "workflow": summary.workflow,
        "kind": summary.kind,
        "version": summary.version,
        "status": shown_status(info, now),
        "waits_for": summary.waits_for or None,
        "due_at": iso_time(summary.due_at),
        "blocked": summary.blocked or None,
        "parent": summary.parent or None,
        "priority": summary.priority,
        "dead_letters": summary.dead_letters,
        "resumable": info.is_resumable(now),
        "created_at": iso_time(summary.created_at),
        "updated_at": iso_time(info.updated_at),
        "entries": info.length,
    }


def entry_tree(entry: Entry) -> Tree:
    """Return an entry as plain data, with its times in ISO 8601."""
    tree = write_entry(entry)
    times = {name: iso_time(tree[name]) for name in _TIMES if name in tree}
    return {**tree, **times}


def show_history(console: Console, entries: Sequence[Entry]) -> None:
    """Print a journal, one entry per line, oldest first."""
    for number, entry in enumerate(entries, start=1):
        # Escaped as one line: a line break in an error message must not look like another entry.
        say_line(f"{number:>6}  {when(entry.at)}  {_entry_text(entry)}", console)


def _entry_text(entry: Entry) -> str:
    match entry:
        case Started():
            return f"Started      {entry.workflow} version {entry.version}"
        case Resumed(owner, retried=retried, dropped=dropped):
            what = (
                ", retries dead letters" if retried else ", drops dead letters" if dropped else ""
            )
            return f"Resumed      by {owner}{what}"
        case BeforeStep(step, attempt):
            return f"BeforeStep   {step}, attempt {attempt}"
        case Completed(step, output, duration):
            return f"Completed    {step} in {duration:.3f} s -> {bounded(output, 60)}"
        case Failed(step, error, retryable):
            kind = "defect " if error.is_defect else ""
            again = "retryable" if retryable else "final"
            return f"Failed       {step}: {kind}{error.type}: {error.message} ({again})"
        case Interrupted(step, in_progress, reason):
            where = "in" if in_progress else "after"
            return f"Interrupted  {where} {step or 'no step'} ({reason})"
        case Decided(path, value, failed=failed):
            return f"Decided      {path} = {bounded(value, 60)}{' (failed)' if failed else ''}"
        case BranchesEnded(path, failures=failures):
            failed = "".join(
                f"; a finalizer failed with {error.type}: {error.message}" for error in failures
            )
            return f"Ended        the branches of {path}{failed}"
        case ChildStarted(path, run_id, workflow):
            return f"ChildStarted {path}: run {run_id} of {workflow}"
        case ChildEnded(path, status):
            return f"ChildEnded   {path}: {status}"
        case Waiting(path):
            return f"Waiting      {path} {wait_text(entry)}"
        case Signalled(path, topic):
            return f"Signalled    {path} by {topic_text(topic)}"
        case Published(_, key, value):
            return f"Published    {key} = {bounded(value, 60)}"
        case Suspended():
            return "Suspended    all flows wait"
        case CancelRequested(reason=reason):
            return f"Cancelling   {reason}"
        case Finished(status=status, output=output, error=error):
            if status is RunStatus.CANCELLED and error is None:
                return f"Finished     {status}"
            what = f"{error.type}: {error.message}" if error else bounded(output, 60)
            return f"Finished     {status}: {what}"


def wait_text(wait: Waiting) -> str:
    """Return what a flow waits for."""
    if wait.topic:
        return f"for {topic_text(wait.topic)}"
    if wait.child:
        return f"for run {wait.child}"
    return "forever" if wait.until is None else f"until {when(wait.until)}"


def topic_text(topic: str) -> str:
    """Return what a message is about, as in "signal approval"."""
    return topic.replace(":", " ", 1)


def show_dead_letters(
    console: Console, letters: Sequence[RecordedDeadLetter], recording: Recording
) -> None:
    """Print the dead letters of a run: the item, and when and how each attempt failed."""
    for letter in letters:
        say_line(f"{letter.flow}  {bounded(letter.item)}", console)
        for failure in recording.failures_of(letter):
            ended, error = when(failure.ended), failure.error
            took = f"after {failure.ended - failure.began:.3f} s"
            say_line(f"    {ended}  {took}  {error.type}: {error.message}", console)
    say(counted(len(letters), "dead letter"), console)


def dead_letter_tree(letter: RecordedDeadLetter, recording: Recording) -> dict[str, Tree]:
    """Return a dead letter as plain data."""
    return {
        "key": letter.key,
        "path": str(letter.flow),
        "item": plain_tree(letter.item),
        "failures": [
            {
                "type": failure.error.type,
                "message": failure.error.message,
                "began_at": iso_time(failure.began),
                "ended_at": iso_time(failure.ended),
            }
            for failure in recording.failures_of(letter)
        ],
    }


def show_verifications(console: Console, verifications: Sequence[Verification]) -> None:
    """Print for each run that it is good, or its first problem."""
    for one in verifications:
        if one.problem is None:
            say(f"{one.run_id}: good, {counted(one.length, 'entry')}", console)
        else:
            good = f"{one.good} of {counted(one.length, 'entry')} are good"
            say(f"{one.run_id}: {good}. {message_of(one.problem)}", console)
    damaged = sum(one.problem is not None for one in verifications)
    say(f"{counted(len(verifications), 'run')} checked, {damaged} damaged", console)


def repair_tree(repair: Repair) -> dict[str, Tree]:
    """Return what a repair did as plain data."""
    return {
        "run_id": repair.run_id,
        "problem": None if repair.problem is None else message_of(repair.problem),
        "kept": repair.kept,
        "lost": repair.lost,
        "runs_again": [*repair.runs_again],
        "outcome_unknown": [*repair.outcome_unknown],
        "executed_twice": [*repair.executed_twice],
        "waits_again": [*repair.waits_again],
        "cancels_again": repair.cancels_again,
        "has_unknown_steps": repair.has_unknown_steps,
        "is_due": repair.is_due,
    }


def show_repair(console: Console, repair: Repair) -> None:
    """Print what a repair keeps and removes, and what runs again."""
    for line in _repair_lines(repair):
        say_line(line, console)


def _repair_lines(repair: Repair) -> Iterable[str]:
    if repair.problem is not None:
        entry = repair.problem.sequence
        what = f"entry {entry} cannot be read: " if entry else ""
        yield f"{repair.run_id}: {what}{repair.problem.reason}"
    yield f"keep: {counted(repair.kept, 'entry')}"
    yield f"lose: {counted(repair.lost, 'later entry')}"
    for step in repair.runs_again:
        yield f"run again: {step}{_warning_of(step, repair)}"
    if repair.has_unknown_steps:
        yield "run again: steps that only damaged or missing entries recorded"
    for path in repair.waits_again:
        yield f"wait again: {path} (send its message again, with a new idempotency key)"
    if repair.cancels_again:
        yield "cancel again: the cancellation of the run was requested, and the repair requests it again"
    plan = f"`{suggested('plan', repair.run_id)}` shows what a resume does."
    if repair.is_due:
        yield f"After the repair, a worker continues the run at once. Without workers, {plan}"
    elif repair.runs_again or repair.waits_again or repair.has_unknown_steps:
        yield f"After the repair, {plan}"


def _warning_of(step: str, repair: Repair) -> str:
    if step in repair.outcome_unknown:
        return (
            " (at_most_once: its outcome is unknown. Find out whether it has happened, then resume with "
            "--force to run it again)"
        )
    if step in repair.executed_twice:
        return (
            " (although it is at_most_once and has begun: find out first whether it has happened)"
        )
    return ""


def plan_tree(plan: ResumePlan) -> dict[str, Tree]:
    """Return a plan as plain data."""
    return {
        "start": [*plan.start],
        "retry": [*plan.retry],
        "skip": [*plan.skip],
        "recurs": [*plan.recurs],
        "waiting": [*plan.waiting],
        "unverified": [{"step": one.step, "reason": one.reason} for one in plan.unverified],
        "problem": None if plan.problem is None else message_of(plan.problem),
        "is_complete": plan.is_complete,
        "reason": plan.reason,
    }


def show_plan(console: Console, plan: ResumePlan, workflow_name: str, app_hint: str) -> None:
    """Print what a resume would do.

    Parameters:
        app_hint: the option to add, if the plan was made without the code; otherwise "".
    """
    for line in _plan_lines(plan, workflow_name, app_hint):
        say_line(line, console)


def _plan_lines(plan: ResumePlan, workflow_name: str, app_hint: str) -> Iterable[str]:
    yield f"skip: {counted(len(plan.skip), 'completed step')}"
    if plan.is_complete:
        yield "start: nothing; the run is complete, and a resume returns its recorded output"
        return
    for step in plan.start:
        yield f"start: {step}{_again(step, plan)}"
    for step in plan.waiting:
        yield f"wait: {step}"
    for step in plan.recurs:
        yield recurrence(step)
    for unverified in plan.unverified:
        yield f"unverified: {unverified.step} ({unverified.reason})"
    if plan.problem is not None:
        yield f"problem: {message_of(plan.problem)}"
    if plan.reason and app_hint:
        yield f"start: unknown; only the code of {workflow_name} can tell: {app_hint}"
    elif plan.reason:
        yield f"start: unknown, as {plan.reason}; to run the effects between steps, add --effects"
    elif not (plan.start or plan.waiting or plan.recurs or plan.problem):
        yield "start: no step is reached"


def _again(step: str, plan: ResumePlan) -> str:
    """Return whether a step has begun before, and whether a resume continues inside it."""
    if step not in plan.retry:
        return ""
    within = sum(done.startswith(f"{step}/") for done in plan.skip)
    return f" (again, after {counted(within, 'completed step')} inside)" if within else " (again)"


def recurrence(step: str) -> str:
    """Return that a resume fails again with the recorded failure of this step, and what to do."""
    return (
        f"fails again: {step}; the run ends with its recorded failure, which a resume does not retry. "
        "To try again, start a new run with another id"
    )


_MAX_WIDTH = 32
"""The longest cell of a table that other rows align with. A longer one moves only its own row."""


def say_table(rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print each row on one line, in aligned columns. Cut nothing."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [
        max((length for length in map(cell_len, column) if length <= _MAX_WIDTH), default=0)
        for column in zip(*cells, strict=True)
    ]
    for row in cells:
        aligned = (
            set_cell_size(cell, max(width, cell_len(cell)))
            for cell, width in zip(row, widths, strict=True)
        )
        say("  ".join(aligned).rstrip(), console)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 step", "2 steps" or "2 entries"."""
    plural = noun.removesuffix("y") + "ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def bounded(tree: Tree, limit: int = 120) -> str:
    """Return a value as text, cut to this many characters."""
    text = render_tree(tree)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def step_text(path: str, kind: str) -> str:
    """Return where a step is in a workflow of this kind: its phase, round, node or transition."""
    first, branch = StepPath(StepPath(path).segments[0]), StepPath(path).flow
    if kind in ("graph", "machine"):
        visit = f", visit {first.occurrence}" if first.occurrence > 1 else ""
        return f"{'node' if kind == 'graph' else 'transition'} {first.name}{visit}"
    if kind == "iterative":
        return f"round {first.occurrence}"
    if branch.key is not None and branch.operator.name == "map":
        return f"phase map, item {branch.key}"
    if branch.key is not None and branch.operator.name == "reduce":
        return f"phase reduce, round {branch.key.partition('.')[0]}"
    return f"step {path}"


def age(seconds: float) -> str:
    """Return how long ago something was."""
    return f"{duration(seconds)} ago"


def duration(seconds: float) -> str:
    """Return a duration in the largest unit that fits."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{seconds / unit:.0f}{name}"
    return f"{max(seconds, 0):.0f}s"


def when(seconds: float) -> str:
    """Return a time of the local clock."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")
