"""The steps of a run as lines of at most 80 columns, coloured on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from effectflow.checkpoint.errors import printable
from effectflow.cli.render import counted, when
from effectflow.effects.clock import in_words
from effectflow.observe.operations import Operation
from effectflow.observe.step_nodes import StepNode, step_tree

WIDTH = 80
_LONGEST_LABEL = 34
_MOST_LINES = 60
_FIRST, _LAST, _MOST_BETWEEN = 3, 7, 10
"""Of many nodes side by side, the first and last ones are shown, and those between that did not simply
complete, at most this many."""

COLOURS: dict[str, str] = {
    "running": "cyan",
    "waiting": "yellow",
    "retrying": "yellow",
    "interrupted": "magenta",
    "completed": "green",
    "failed": "red",
    "cancelled": "bright_black",
    "left": "bright_black",
}


def step_lines(operations: Sequence[Operation], now: float, *, is_held: bool) -> Iterable[Text]:
    """Yield the tree of the steps and waits of a run, at most about 60 lines.

    Parameters:
        now: the time, in seconds since the epoch.
        is_held: whether a live process has the run. Otherwise, nothing in it is running.
    """
    rows = [
        (cut_to(f"{'  ' * depth}{label}", _LONGEST_LABEL), node)
        for depth, label, node in _flat(step_tree(operations), 1)
    ]
    labels = max((cell_len(label) for label, _ in rows), default=0)
    for label, node in rows[:_MOST_LINES]:
        yield _line(label, node, labels, now, is_held=is_held)
    if len(rows) > _MOST_LINES:
        yield Text(f"  and {counted(len(rows) - _MOST_LINES, 'more line')}")


def _flat(
    nodes: Sequence[StepNode], depth: int
) -> Iterator[tuple[int, str, Operation | Sequence[StepNode] | None]]:
    """Yield the depth and the label of each line, with its operation, or the nodes that it stands for."""
    hidden: list[StepNode] = []
    shown = _shown(nodes)
    for number, node in enumerate(nodes):
        if number not in shown:
            hidden.append(node)
            continue
        if hidden:
            yield depth, "...", hidden
            hidden = []
        yield depth, node.label, node.operation
        yield from _flat(node.inside, depth + 1)


def _shown(nodes: Sequence[StepNode]) -> set[int]:
    """Return the positions of the nodes that are shown."""
    many = len(nodes)
    if many <= _FIRST + _LAST + _MOST_BETWEEN:
        return set(range(many))
    between = (
        number
        for number in range(_FIRST, many - _LAST)
        if any(one.state != "completed" for one in nodes[number].operations())
    )
    notable = [number for number, _ in zip(between, range(_MOST_BETWEEN), strict=False)]
    return {*range(_FIRST), *notable, *range(many - _LAST, many)}


def _line(
    label: str,
    node: Operation | Sequence[StepNode] | None,
    width: int,
    now: float,
    *,
    is_held: bool,
) -> Text:
    line = Text(set_cell_size(label, width))
    if node is None:
        line.rstrip()
        return line
    if not isinstance(node, Operation):
        counts = Counter(one.state for each in node for one in each.operations())
        line.append(f"  {', '.join(f'{count} {state}' for state, count in counts.items())}")
        return line
    state = "interrupted" if node.state == "running" and not is_held else node.state
    ended = None if state == "retrying" else node.newest.ended
    took = duration_text((now if ended is None else ended) - node.began)
    line.append(f"  {_clock(node.began)}  {took:>6}  ")
    line.append(state, COLOURS[state])
    line.append(cut_to(_note(node), max(WIDTH - cell_len(line.plain), 0)))
    return line


def _note(one: Operation) -> str:
    """Return what there is to say beside the state: attempts, what it waits for, and the error."""
    parts = [f" for {one.what}"] if one.what and one.kind == "wait" else []
    if one.kind == "run":
        parts = [f": started {one.what}"]
    if one.kind == "step" and len(one.attempts) > 1:
        parts.append(f", attempt {len(one.attempts)}")
    if one.until is not None:
        parts.append(f", until {when(one.until)}")
    error = one.newest.error
    if error is not None:
        parts.append(f": {error.type.rpartition('.')[2]}: {error.message}")
    return "".join(parts)


def cut_to(text: str, width: int) -> str:
    """Return a text that is safe to show, cut to this many columns."""
    text = printable(text)
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, width - 3).rstrip()}..." if width > 3 else ""


def duration_text(seconds: float) -> str:
    """Return a duration, with hundredths below ten seconds."""
    return f"{max(seconds, 0):.2f}s" if seconds < 10 else in_words(seconds)


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%H:%M:%S")
