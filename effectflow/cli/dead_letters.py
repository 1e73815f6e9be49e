"""`effectflow dead-letters`: the items of map-reduce jobs that failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from effectflow.checkpoint import CheckpointStore
from effectflow.checkpoint.checkpoint import fold, iso_time
from effectflow.checkpoint.entries import Entry, SetAside
from effectflow.checkpoint.journal_reader import read_existing
from effectflow.checkpoint.order import read_order
from effectflow.checkpoint.values import Tree, bounded, plain_tree
from effectflow.cli.access import Access, CodeOption
from effectflow.cli.app_loader import workflow_of_run
from effectflow.cli.command import Answer, command
from effectflow.cli.drive import RunToDrive, drive
from effectflow.cli.options import BadUse, LatestOption, RunArgument
from effectflow.cli.render import counted, when
from effectflow.cli.suggestions import suggested
from effectflow.effects.paths import StepPath
from effectflow.runs.reopening import RecordedLetter, dead_letters_of


@command(CodeOption)
def dead_letters(
    access: Access,
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
            "--force",
            help="Continue even if the workflow changed, or an at-most-once step would run again.",
        ),
    ] = False,
) -> Answer:
    """Show the items of map-reduce jobs that failed, and how each attempt ended; retry or drop them."""
    if retry and drop:
        raise BadUse("give either --retry or --drop")
    chosen_keys = frozenset(keys or ())
    if latest and run_id is not None:
        # Then every argument is a key.
        run_id, chosen_keys = None, chosen_keys | {run_id}

    async def read(store: CheckpointStore) -> tuple[str, tuple[Entry, ...]]:
        chosen = await access.chosen(run_id, latest)
        return chosen, await read_existing(store, chosen, access.seal)

    chosen, entries = access.use(read)
    checkpoint = fold(entries, chosen)
    aside = [entry for entry in entries if isinstance(entry, SetAside)]
    unknown = chosen_keys - {StepPath(entry.path).flow.key for entry in aside}
    if unknown:
        shown = ", ".join(sorted(map(repr, unknown)))
        raise BadUse(f"run {chosen!r} has no dead letters with the keys {shown}")
    if retry or drop:
        loaded = workflow_of_run(chosen, checkpoint.workflow, access.app, checkpoint.module)
        change = loaded.workflow.retry_dead_letters if retry else loaded.workflow.drop_dead_letters
        effect = change(chosen, chosen_keys or None, force=force)
        return drive(RunToDrive(chosen, loaded, access, effect))
    letters = dead_letters_of(read_order(entries))
    letters = [one for one in letters if not chosen_keys or one.key in chosen_keys]
    lines = [*_dead_letter_lines(letters)]
    if letters:
        module = access.app or checkpoint.module
        reopen = suggested("dead-letters", chosen, "--retry", module=module)
        lines += [
            f"Retry them with: {reopen}",
            "To give them up, write --drop instead of --retry.",
        ]
    return Answer([_dead_letter_tree(letter) for letter in letters], lines)


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
