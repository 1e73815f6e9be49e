"""The operations of a run as a tree: steps in steps, and in the branches of operators. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from effectflow.checkpoint.schema import frozen
from effectflow.effects.paths import StepPath
from effectflow.observe.operations import Operation


@frozen
class StepNode:
    """A step or a wait with what is inside it, or a branch of an operator.

    Attributes:
        label: the part of the path that it adds to that of the node around it.
        path: its path.
        operation: the operation; None for a branch, or for what only its inside tells of.
        inside: the nodes inside it, in the order in which they first began.
    """

    label: str
    path: str
    operation: Operation | None
    inside: tuple[StepNode, ...] = ()

    def operations(self) -> Iterator[Operation]:
        """Yield its operation, and those inside it."""
        stack: list[StepNode] = [self]
        while stack:
            node = stack.pop()
            if node.operation is not None:
                yield node.operation
            stack.extend(reversed(node.inside))


@dataclass(slots=True)
class _Growing:
    operation: Operation | None = None
    # `dict[...]` as the factory would take five times as long.
    inside: dict[str, _Growing] = field(default_factory=lambda: {})


def step_tree(operations: Iterable[Operation]) -> tuple[StepNode, ...]:
    """Return the tree of operations. A branch with a single operation has one node with it.

    Example:
        >>> from effectflow.observe.operations import Attempt
        >>> done = (Attempt(1.0, 2.0, "completed"),)
        >>> paths = ["charge", "charge/quote", "par[0]/ship", "par[1]/a", "par[1]/b"]
        >>> tree = step_tree(Operation(path, "step", done, "completed") for path in paths)
        >>> [(node.label, [inner.label for inner in node.inside]) for node in tree]
        [('charge', ['quote']), ('par[0]/ship', []), ('par[1]', ['a', 'b'])]
    """
    root = _Growing()
    for one in operations:
        path, node = one.path, root
        # Most paths have one segment.
        for segment in StepPath(path).segments if "/" in path else (path,):
            known = node.inside.get(segment)
            if known is None:
                known = node.inside[segment] = _Growing()
            node = known
        node.operation = one
    return tuple(_frozen(label, label, node) for label, node in root.inside.items())


def _frozen(label: str, path: str, node: _Growing) -> StepNode:
    while node.operation is None and len(node.inside) == 1:
        [(inner, node)] = node.inside.items()
        label, path = f"{label}/{inner}", f"{path}/{inner}"
    if not node.inside:
        return StepNode(label, path, node.operation)
    inside = tuple(_frozen(inner, f"{path}/{inner}", each) for inner, each in node.inside.items())
    return StepNode(label, path, node.operation, inside)
