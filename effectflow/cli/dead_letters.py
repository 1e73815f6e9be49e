"""`effectflow dead-letters`: the items of map-reduce jobs that failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from effectflow.checkpoint import Checkpoint, CheckpointStore
from effectflow.checkpoint.checkpoint import fold, iso_time
from effectflow.checkpoint.entries import Entry, SetAside
from effectflow.checkpoint.journal_reader import read_existing
from effectflow.checkpoint.order import read_order
from effectflow.checkpoint.values import Tree, plain_tree
from effectflow.cli.access import Access, to_code, with_access
from effectflow.cli.app_loader import workflow_of_run
from effectflow.cli.drive import DriveRequest, drive
from effectflow.cli.options import BadUse, JsonOption, LatestOption, RunArgument
from effectflow.cli.render import bounded, counted, print_json, say, say_lines, when
from effectflow.cli.suggestions import suggested
from effectflow.effects.paths import StepPath
from effectflow.runs.reopening import RecordedLetter, dead_letters_of


@with_access(to_code)
def dead_letters(
    run_id: RunArgument = None,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Only the items with these keys.")
    ] = None,
    latest: LatestOption = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Map these items again, and continue the run.")
    ] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Drop these items from the result, and continue the run.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            help="Continue even if the workflow changed, or an at-most-once step would run again."
        ),
    ] = False,
    *,
    access: Access,
    as_json: JsonOption = False,
) -> None:
    """Show the items of map-reduce jobs that failed, and how each attempt ended; retry or drop them."""
    if retry and drop:
        raise BadUse("give either --retry or --drop")
    chosen_keys = frozenset(keys or ())
    if latest and run_id is not None:
        # Then every argument is a key.
        run_id, chosen_keys = None, chosen_keys | {run_id}

    async def read(opened: CheckpointStore, chosen: str) -> tuple[Checkpoint, tuple[Entry, ...]]:
        entries = await read_existing(opened, chosen, access.seal)
        return fold(entries, chosen), entries

    checkpoint, entries = access.use_run(run_id, latest, read)
    aside = [entry for entry in entries if isinstance(entry, SetAside)]
    unknown = chosen_keys - {StepPath(entry.path).flow.key for entry in aside}
    if unknown:
        shown = ", ".join(sorted(map(repr, unknown)))
        raise BadUse(f"run {checkpoint.run_id!r} has no dead letters with the keys {shown}")
    if retry or drop:
        loaded = workflow_of_run(
            checkpoint.run_id, checkpoint.workflow, access.app, checkpoint.module
        )
        change = loaded.workflow.retry_dead_letters if retry else loaded.workflow.drop_dead_letters
        effect = change(checkpoint.run_id, chosen_keys or None, force=force)
        drive(DriveRequest(loaded, lambda _: effect, checkpoint.run_id, access, as_json=as_json))
    letters = dead_letters_of(read_order(entries))
    letters = [one for one in letters if not chosen_keys or one.key in chosen_keys]
    if as_json:
        print_json([_dead_letter_tree(letter) for letter in letters])
    else:
        _show(letters, checkpoint, access.app or checkpoint.module)


def _show(
    letters: Sequence[RecordedLetter],
    checkpoint: Checkpoint,
    module: str,
) -> None:
    """Show dead letters, and the command that retries them; `module` has their workflow."""
    say_lines(_dead_letter_lines(letters))
    if letters:
        reopen = suggested("dead-letters", checkpoint.run_id, "--retry", module=module)
        say(f"Retry them with: {reopen}\nTo give them up, write --drop instead of --retry.")


def _dead_letter_lines(letters: Sequence[RecordedLetter]) -> Iterable[str]:
    """Yield the item of each dead letter, and when and how each attempt failed."""
    for letter in letters:
        yield f"{letter.flow}  {bounded(letter.item)}"
        for failure in letter.failures:
            ended, error = when(failure.ended), failure.error
            took = f"after {failure.ended - failure.began:.3f} s"
            yield f"    {ended}  {took}  {error.type}: {error.message}"
    yield counted(len(letters), "dead letter")


def _dead_letter_tree(letter: RecordedLetter) -> dict[str, Tree]:
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
            for failure in letter.failures
        ],
    }
