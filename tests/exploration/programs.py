"""Random programs as plain data: a tree of operators, whose leaves are steps, waits and local code.

`bodies.py` makes effects of them. Every node has a name that no other node has. What it does in the world
is known by that name, whatever an engine calls its steps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, takewhile

LEAVES = {
    "step": 2,
    "slow step": 1,  # needs time to react to a cancellation
    "stubborn step": 1,  # completes although it was cancelled
    "fragile step": 1,  # turns a cancellation into an error of its own, as some clients do
    "failing step": 1,  # until it is fixed
    "retried step": 1,  # with `retry=`; fails `count` times
    "local": 2,  # async code between steps
    "failing local": 1,
    "bug": 1,  # a defect of a body
    "sleep": 1,
    "receive": 1,  # waits for a signal, in the body of the run
    "inner receive": 1,  # the same in a step or in another workflow
    "value": 1,  # of `now()`, `random()` or `uuid()`
    "publish": 1,
}
"""The kinds of leaves, with how often they are drawn."""

NODES = {
    "seq": 4,  # a body with `@do`
    "chain": 2,  # the same with `and_then`
    "coroutine": 2,  # the same in an `async def` that awaits effects, and local code between them
    "par": 2,
    "par_all": 2,
    "race": 2,
    "first_success": 2,
    "timeout": 2,
    "recover": 1,  # `or_else`: handles a failure
    "try": 2,  # `try` in a body: handles a failure or a defect
    "step of": 2,  # a step whose effect is a program, with `count` attempts
    "limited step of": 1,  # the same, with `timeout=`
    "call": 1,  # another workflow inside this run
    "bracket": 2,  # acquires and releases by steps
    "local bracket": 2,  # acquires and releases by local code
    "mixed bracket": 2,  # acquires by a step; releases by local code and a step
    "timed bracket": 2,  # its acquisition has a timeout
    "finally": 1,  # `on_exit` with local code
    "finally step": 1,  # `on_exit` with a step
    "finally of": 2,  # whose finalizer is any program
    "release of": 2,
    "acquire of": 1,
    "traverse": 4,
    "saga": 2,  # of `book` and other programs
}
"""The kinds of operators, with how often they are drawn."""

HAPPENINGS = frozenset({"cancel", "plan"})
"""What happens to runs from outside, besides deaths and stops of their processes."""

KINDS = frozenset({*LEAVES, *NODES, "book"}) | HAPPENINGS
"""Everything that a trial can be made of. `book` is a step that its saga can undo."""

SOURCES = ("list", "keyed", "async")
"""How `traverse` reads its items: from a list, asynchronously, or by key in a new order in each life."""


@dataclass(frozen=True, slots=True)
class Node:
    """A program: an operator and its parts, or a leaf.

    Attributes:
        kind: one of `KINDS`.
        name: what no other node of the program is called.
        parts: the programs that it is made of.
        seconds: how long it sleeps, or when its timeout expires.
        count: the attempts, the failures of a retried step, or the limit of a traversal.
        how: the variant of some kinds: the topic of a signal, the source of items, and such.
        is_patient: whether a traversal runs all items to their ends instead of to the first failure.
    """

    kind: str
    name: str
    parts: tuple[Node, ...] = ()
    seconds: float = 0
    count: int = 0
    how: str = ""
    is_patient: bool = False

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def __iter__(self) -> Iterator[Node]:
        """Yield this node and all nodes within."""
        yield self
        for part in self.parts:
            yield from part


def _lines(node: Node, indent: str = "") -> Iterator[str]:
    options = [node.name]
    options += [f"{node.seconds:g} s"] if node.seconds else []
    options += [f"{node.count}"] if node.count else []
    options += [node.how] if node.how else []
    options += ["all"] if node.is_patient else []
    yield f"{indent}{node.kind} ({', '.join(options)})"
    for part in node.parts:
        yield from _lines(part, indent + "  ")


def draw(seed: int, kinds: frozenset[str] = KINDS, *, most: int = 30) -> Node:
    """Draw a program of these kinds, with at most this many nodes."""
    r = random.Random(f"program {seed}")
    depth = r.choice([2, 3, 3, 4])
    while True:
        drawing = _Drawing(r, kinds)
        program = drawing.of("seq", [drawing.draw(depth), drawing.draw(depth - 1)])
        if sum(1 for _ in program) <= most:
            return program


@dataclass
class _Drawing:
    r: random.Random
    kinds: frozenset[str]
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    is_in_saga: bool = False
    is_in_unit: bool = False

    def of(self, kind: str, parts: Sequence[Node] = (), **options: object) -> Node:
        initial = "".join(word[0] for word in kind.split())
        made = Node(kind, f"{initial}{next(self.numbers)}", tuple(parts))
        return replace(made, **options) if options else made

    def draw(self, depth: int) -> Node:
        weights = dict(LEAVES)
        if depth:
            weights |= {kind: 2 * weight for kind, weight in NODES.items()}
        if self.is_in_saga:
            weights["book"] = 4
        del weights["receive" if self.is_in_unit else "inner receive"]
        allowed = {kind: weight for kind, weight in weights.items() if kind in self.kinds}
        kind = self.r.choices([*allowed], [*allowed.values()])[0]
        return self.leaf(kind) if kind in LEAVES or kind == "book" else self.node(kind, depth - 1)

    def leaf(self, kind: str) -> Node:
        choice = self.r.choice
        match kind:
            case "retried step":
                return self.of(kind, count=choice([1, 2, 3]))
            case "sleep":
                return self.of(kind, seconds=choice([0.5, 1, 2, 7]))
            case "receive" | "inner receive":
                return self.of(kind, how=choice("ab"))
            case "value":
                return self.of(kind, how=choice(["now", "random", "uuid"]))
            case _:
                return self.of(kind)

    def node(self, kind: str, depth: int) -> Node:
        choice = self.r.choice
        match kind:
            case "seq" | "chain" | "coroutine" | "par" | "par_all" | "race" | "first_success":
                return self.of(kind, self.some(depth, 1, 3))
            case "timeout":
                return self.of(kind, [self.draw(depth)], seconds=choice([0.5, 1, 2, 4]))
            case "recover" | "try":
                return self.of(kind, [self.draw(depth), self.draw(depth)])
            case "step of":
                return self.of(kind, [self.unit(depth)], count=choice([1, 1, 2]))
            case "limited step of":
                return self.of(kind, [self.unit(depth)], seconds=choice([1, 4]))
            case "call":
                return self.of(kind, [self.unit(depth)])
            case "finally of" | "release of":
                return self.of(kind, [self.draw(depth), self.unit(depth)])
            case "acquire of":
                return self.of(kind, [self.draw(depth), self.unit(depth)])
            case "traverse":
                return self.traverse(depth)
            case "saga":
                return self.saga(depth)
            case _:
                return self.of(kind, [self.draw(depth)])

    def some(self, depth: int, least: int, most: int) -> list[Node]:
        return [self.draw(depth) for _ in range(self.r.randint(least, most))]

    def unit(self, depth: int) -> Node:
        """Draw the inside of a step or of another workflow, which the saga around it cannot undo."""
        outer = self.is_in_saga, self.is_in_unit
        self.is_in_saga, self.is_in_unit = False, True
        drawn = self.draw(depth)
        self.is_in_saga, self.is_in_unit = outer
        return drawn

    def traverse(self, depth: int) -> Node:
        source = self.r.choice(SOURCES)
        number = self.r.randint(2, 5)
        if source == "keyed":
            # An item without a step at its beginning would depend on the order of the items.
            items = [self.of("step of", [self.unit(depth)], count=1) for _ in range(number)]
        else:
            items = self.some(depth, number, number)
        limit, is_patient = self.r.choice([1, 2, 2, 3]), self.r.random() < 0.5
        return self.of("traverse", items, count=limit, how=source, is_patient=is_patient)

    def saga(self, depth: int) -> Node:
        outer, self.is_in_saga = self.is_in_saga, True
        parts = [self.of("book") for _ in range(self.r.randint(1, 2))]
        parts.append(self.draw(depth))
        self.r.shuffle(parts)
        self.is_in_saga = outer
        return self.of("saga", parts, how=self.r.choice(["seq", "par"]))


def is_unit(node: Node) -> bool:
    """Return whether a node is a step or a workflow of its own, with a program inside."""
    return node.kind in ("step of", "limited step of", "call")


def is_valid(program: Node) -> bool:
    """Return whether each booking has a saga, and each keyed item begins with a step."""
    ancestry = Ancestry.of(program)
    return all(
        ancestry.sagas(node.name)
        if node.kind == "book"
        else node.how != "keyed" or all(map(is_unit, node.parts))
        for node in program
    )


@dataclass(frozen=True)
class Ancestry:
    """Which nodes are around each node of a program, from the inside out, with the number of the part."""

    around: dict[str, tuple[tuple[Node, int], ...]]

    @staticmethod
    def of(program: Node) -> Ancestry:
        around: dict[str, tuple[tuple[Node, int], ...]] = {}

        def visit(node: Node, above: tuple[tuple[Node, int], ...]) -> None:
            around[node.name] = above
            for number, part in enumerate(node.parts):
                visit(part, ((node, number), *above))

        visit(program, ())
        return Ancestry(around)

    def nodes(self, name: str) -> list[Node]:
        """Return the nodes around a node, from the inside out."""
        return [node for node, _ in self.around[name]]

    def sagas(self, name: str) -> list[Node]:
        """Return the sagas around a node that are in the same step or workflow."""
        found = takewhile(lambda node: not is_unit(node), self.nodes(name))
        return [node for node in found if node.kind == "saga"]
