"""`effectflow verify` and `effectflow repair`: find damaged runs, and truncate them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from effectflow.checkpoint import Repair, Verification, repair_run, verify_run, write_removed
from effectflow.cli.access import Access, ServiceOption
from effectflow.cli.command import Answer, command
from effectflow.cli.options import BadUse, ExitCode, LatestOption
from effectflow.cli.render import counted, fields_of, say_lines
from effectflow.cli.suggestions import message_of, suggested
from effectflow.stores._atomic_files import folder_name, write_whole


@command(ServiceOption)
async def verify(
    access: Access,
    run_id: Annotated[
        str | None, typer.Argument(metavar="RUN_ID", help="The run to check; by default all runs.")
    ] = None,
    latest: LatestOption = False,
) -> Answer:
    """Check that the entries of a run, or of all runs, are undamaged."""
    run_ids = await access.chosen_or_all(() if run_id is None else (run_id,), latest)
    checked = [await verify_run(access.store, one, access.seal) for one in run_ids]
    is_damaged = any(one.problem is not None for one in checked)
    return Answer(
        [
            {"run_id": one.run_id, "entries": one.length, "good": one.good, "problem": one.problem}
            for one in checked
        ],
        _verification_lines(checked),
        code=ExitCode.CHECKPOINT_ERROR if is_damaged else ExitCode.DONE,
    )


@command(ServiceOption, latest=LatestOption)
async def repair(
    access: Access,
    run_id: str,
    yes: Annotated[bool, typer.Option("--yes", help="Repair without asking.")] = False,
    aside: Annotated[
        Path, typer.Option(help="The folder for a file that keeps the removed entries.")
    ] = Path(),
) -> Answer:
    """Truncate a damaged run after its last intact entry, so that it can be resumed.

    First show what is lost and which steps run again, and ask. A file keeps what is removed.
    """
    found = await repair_run(access.store, run_id, access.seal, dry_run=True)
    if found.problem is not None:
        say_lines(_repair_lines(found), Console(stderr=access.as_json))
        if not (yes or _is_confirmed("Repair the run?", err=access.as_json)):
            raise BadUse("nothing was changed. `--yes` repairs the run without asking")
    kept: list[Path] = []
    repaired = await repair_run(
        access.store, run_id, access.seal, aside=lambda one: kept.extend(_keep_removed(one, aside))
    )
    where = f": what was removed is in {kept[0]}" if kept else ""
    nothing = f"{run_id}: good, {counted(repaired.kept, 'entry')}. There is nothing to repair."
    tree = fields_of(repaired) | {"aside": str(kept[0]) if kept else None}
    return Answer(
        {name: tree[name] for name in tree if name not in ("removed", "unreadable")},
        [nothing if repaired.problem is None else f"Repaired{where}."],
    )


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


def _verification_lines(checked: Sequence[Verification]) -> Iterable[str]:
    """Yield for each run that it is good, or its first problem."""
    for one in checked:
        if one.problem is None:
            yield f"{one.run_id}: good, {counted(one.length, 'entry')}"
        else:
            good = f"{one.good} of {counted(one.length, 'entry')} are good"
            yield f"{one.run_id}: {good}. {message_of(one.problem)}"
    damaged = sum(one.problem is not None for one in checked)
    yield f"{counted(len(checked), 'run')} checked, {damaged} damaged"


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
