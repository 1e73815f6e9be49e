"""`effectflow history`: the journal of a run, one entry per line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from effectflow.checkpoint import (
    Completed,
    Entry,
)
from effectflow.checkpoint.checkpoint import iso_time
from effectflow.checkpoint.entries import write_entry
from effectflow.checkpoint.journal_reader import read_existing
from effectflow.checkpoint.values import Tree, write_json
from effectflow.cli.access import Access, ServiceOption
from effectflow.cli.command import Answer, command
from effectflow.cli.options import LatestOption
from effectflow.cli.render import when
from effectflow.observe.journal_lines import journal_lines


@command(ServiceOption, latest=LatestOption)
async def history(access: Access, run_id: str) -> Answer:
    """Show the journal of a run, one entry per line.

    With --json, entries have no `output` after 64 MiB of outputs with common parts.
    """
    entries = await read_existing(access.store, run_id, access.seal)
    return Answer(_entry_trees(entries) if access.as_json else None, _journal_lines(entries))


_TIMES = ("at", "retry_at", "until")
"""The fields of entries that are times."""


def _entry_trees(entries: Iterable[Entry]) -> list[Tree]:
    """Return entries as plain data; without `output` once these are too long together."""
    trees: list[Tree] = []
    left = _MOST_OUTPUT
    for entry in entries:
        is_too_long = False
        if isinstance(entry, Completed) and entry.shared is not None:
            left -= len(write_json(entry.output))
            is_too_long = left <= 0
            entry = replace(entry, shared=None)
        tree = _entry_tree(entry)
        if is_too_long:
            # Absent, because null is the output None.
            del tree["output"]
        trees.append(tree)
    return trees


_MOST_OUTPUT = 64 * 1024 * 1024
"""The bytes of outputs with common parts that are shown, where each has these parts again."""


def _entry_tree(entry: Entry) -> dict[str, Tree]:
    """Return an entry as plain data, with its times in ISO 8601."""
    tree = write_entry(entry)
    times = {name: iso_time(tree[name]) for name in _TIMES if name in tree}
    return {**tree, **times}


def _journal_lines(entries: Iterable[Entry]) -> Iterable[str]:
    """Yield a line for each entry of a journal, oldest first."""
    for line in journal_lines(entries, when):
        yield f"{line.number:>6}  {when(line.at)}  {line.kind:<12} {line.text}"
