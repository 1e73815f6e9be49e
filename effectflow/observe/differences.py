"""What changed in a run between two of its entries. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import cast

from effectflow.builders.kinds import view_of
from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.values import Tree
from effectflow.observe.recorded_run import RunState

MOST_DIFFERENCES = 200
"""No more differences between two states are told."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of a run that two of its states do not share.

    Attributes:
        part: what it is: "status", "step charge", "published total", or of which value, such as
            "state.items[2]".
        before, after: its values as they are saved; None where there is none.
        was_absent, is_absent: whether there was none before, or is none after.
    """

    part: str
    before: Tree = None
    after: Tree = None
    was_absent: bool = False
    is_absent: bool = False


def differences_between(before: RunState, after: RunState) -> list[Difference]:
    """Return what differs between two states of a run, at most 200 parts.

    Example:
        >>> from effectflow.checkpoint import BeforeStep, Completed, Started
        >>> entries = [
        ...     Started("r", "order", "code", "1", "", input=5, context={}, journal=1, at=1.0),
        ...     BeforeStep("charge", 1, at=2.0),
        ...     Completed("charge", "paid", 1.0, at=3.0),
        ... ]
        >>> one, other = RunState.after(entries[:2], "r"), RunState.after(entries, "r")
        >>> for each in differences_between(one, other):
        ...     print(each.part, each.before, each.after)
        step charge running completed
        output of charge None paid
        state 5 paid
    """
    return list(islice(_differences(before, after), MOST_DIFFERENCES))


def _differences(before: RunState, after: RunState) -> Iterator[Difference]:
    one, other = before.checkpoint, after.checkpoint
    if one.status is not other.status:
        yield Difference("status", str(one.status), str(other.status))
    yield from _of_parts(
        "", dict(view_of(one.kind).rows(one)), dict(view_of(other.kind).rows(other))
    )
    yield from _of_parts("", _states(before), _states(after))
    yield from _of_parts("output of ", _outputs(one), _outputs(other))
    yield from _of_parts("published ", before.published, after.published)
    yield from differences(one.current_state, other.current_state, "state")


def _states(state: RunState) -> dict[str, Tree]:
    return {f"{each.kind} {each.path}": each.state for each in state.operations}


def _outputs(checkpoint: Checkpoint) -> dict[str, Tree]:
    return {each.step: each.output for each in checkpoint.completed_steps}


def _of_parts(
    prefix: str, before: Mapping[str, Tree], after: Mapping[str, Tree], depth: int = 0
) -> Iterator[Difference]:
    for name in {**before, **after}:
        if name not in before:
            yield Difference(f"{prefix}{name}", after=after[name], was_absent=True)
        elif name not in after:
            yield Difference(f"{prefix}{name}", before[name], is_absent=True)
        elif before[name] is not after[name]:
            yield from differences(before[name], after[name], f"{prefix}{name}", depth)


def differences(before: Tree, after: Tree, part: str, depth: int = 0) -> Iterator[Difference]:
    """Yield the parts of two saved values that differ, each with its path.

    Parameters:
        part: the path of the values themselves.
        depth: how deep they are in the value that was asked about.

    Example:
        >>> found = differences({"a": [1, 2], "b": 0}, {"a": [1, 3, 4], "b": 0}, "state")
        >>> [each.part for each in found]
        ['state.a[1]', 'state.a[2]']
    """
    if type(before) is type(after) and before == after:
        return
    parts, others = (_parts_of(each) for each in (before, after))
    if depth == _DEEPEST or parts is None or others is None or parts[0] != others[0]:
        yield Difference(part, before, after)
        return
    yield from _of_parts(part, parts[1], others[1], depth + 1)


_DEEPEST = 30
"""A value that is nested more deeply is compared as a whole."""


def _parts_of(tree: Tree) -> tuple[str, dict[str, Tree]] | None:
    """Return the class of a saved value and its parts by their place in it; None if it has no parts."""
    kind = type(tree).__name__
    match tree:
        case {"$object": [str(name), dict(fields)]}:
            kind, tree = name, cast("dict[str, Tree]", fields)
        case {"$tuple": list(items)}:
            kind, tree = "tuple", cast("list[Tree]", items)
        case _:
            pass
    if isinstance(tree, list):
        return kind, {f"[{number}]": item for number, item in enumerate(tree)}
    if isinstance(tree, dict) and not any(key.startswith("$") for key in tree):
        return kind, {f".{key}": item for key, item in tree.items()}
    return None
