"""`effectflow verify` and `effectflow repair`: find damaged runs, and truncate them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from effectflow.checkpoint import (
    CheckpointStore,
    Repair,
    Verification,
    repair_run,
    verify_run,
    write_removed,
)
from effectflow.checkpoint.values import Tree
from effectflow.cli.access import Access, to_runs, with_access
from effectflow.cli.options import BadUse, ExitCode, JsonOption, LatestOption, RunArgument
from effectflow.cli.render import counted, print_json, say, say_lines
from effectflow.cli.suggestions import message_of, suggested
from effectflow.stores._atomic_files import folder_name, write_whole


@with_access(to_runs)
def verify(
    run_id: Annotated[
        str | None, typer.Argument(help="The run to check; by default all runs.")
    ] = None,
    latest: LatestOption = False,
    *,
    access: Access,
    as_json: JsonOption = False,
) -> None:
    """Check that the entries of a run, or of all runs, are undamaged."""

    async def check(opened: CheckpointStore, run_ids: Iterable[str]) -> list[Verification]:
        return [await verify_run(opened, one, access.seal) for one in run_ids]

    verifications = access.use_runs(() if run_id is None else (run_id,), latest, check)
    if as_json:
        print_json(
            [
                {
                    "run_id": one.run_id,
                    "entries": one.length,
                    "good": one.good,
                    "problem": None if one.problem is None else message_of(one.problem),
                }
                for one in verifications
            ]
        )
    else:
        _show_verifications(Console(), verifications)
    if any(one.problem is not None for one in verifications):
        raise typer.Exit(ExitCode.CHECKPOINT_ERROR)


@with_access(to_runs)
def repair(
    run_id: RunArgument = None,
    latest: LatestOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="Repair without asking.")] = False,
    aside: Annotated[
        Path, typer.Option(help="The folder for a file that keeps the removed entries.")
    ] = Path(),
    *,
    access: Access,
    as_json: JsonOption = False,
) -> None:
    """Truncate a damaged run after its last intact entry, so that it can be resumed.

    First show what is lost and which steps run again, and ask. A file keeps what is removed.
    """
    seal, console = access.seal, Console(stderr=as_json)
    found = access.use_run(
        run_id, latest, lambda opened, chosen: repair_run(opened, chosen, seal, dry_run=True)
    )
    if found.problem is not None:
        say_lines(_repair_lines(found), console)
        if not (yes or _is_confirmed("Repair the run?", err=as_json)):
            raise BadUse("nothing was changed. `--yes` repairs the run without asking")
    kept: list[Path] = []
    repaired = access.use(
        lambda opened: repair_run(
            opened, found.run_id, seal, aside=lambda one: kept.extend(_keep_removed(one, aside))
        ),
    )
    path = str(kept[0]) if kept else None
    if as_json:
        print_json({**_repair_tree(repaired), "aside": path})
    elif repaired.problem is None:
        say(
            f"{found.run_id}: good, {counted(repaired.kept, 'entry')}. There is nothing to repair.",
            console,
        )
    else:
        say(f"Repaired{f': what was removed is in {path}' if path else ''}.", console)


def _is_confirmed(question: str, *, err: bool) -> bool:
    try:
        return typer.confirm(question, err=err)
    except typer.Abort:
        return False


def _keep_removed(repair: Repair, folder: Path) -> list[Path]:
    """Write what a repair removes to a new file. Return its path, or nothing if nothing is removed."""
    if not (repair.removed or repair.unreadable):
        return []
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    path = folder / f"{folder_name(repair.run_id)}-{moment}.jsonl"
    try:
        write_whole(path, b"".join(write_removed(repair)))
    except OSError as error:
        raise BadUse(f"nothing was changed: cannot write {path}: {error.strerror}") from error
    return [path]


def _show_verifications(console: Console, verifications: Sequence[Verification]) -> None:
    """Print for each run that it is good, or its first problem."""
    for one in verifications:
        if one.problem is None:
            say(f"{one.run_id}: good, {counted(one.length, 'entry')}", console)
        else:
            good = f"{one.good} of {counted(one.length, 'entry')} are good"
            say(f"{one.run_id}: {good}. {message_of(one.problem)}", console)
    damaged = sum(one.problem is not None for one in verifications)
    say(f"{counted(len(verifications), 'run')} checked, {damaged} damaged", console)


def _repair_tree(repair: Repair) -> dict[str, Tree]:
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


def _repair_lines(repair: Repair) -> Iterable[str]:
    """Yield what a repair keeps and removes, and what runs again."""
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
