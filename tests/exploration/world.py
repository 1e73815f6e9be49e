"""The world that programs act on: what outlives a process, and what one life of it does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import anyio

from effectflow import current_step
from tests.exploration.programs import Ancestry, Node

A = TypeVar("A")


class Broken(Exception):
    """A typed failure. Its argument names the nodes that failed, separated by `+`."""

    @property
    def names(self) -> list[str]:
        return str(self.args[0]).split("+")


class Bug(Exception):
    """A defect. Its argument is the name of the node."""


ABORTED = "aborted"
"""The failure of a fragile step that was cancelled. No run may fail with it: what cancels, decides."""


@dataclass(frozen=True, slots=True)
class StepKey:
    """The identity of a step: its run, and what the engine calls it there."""

    run_id: str
    step: str

    def __str__(self) -> str:
        return f"{self.step} of {self.run_id}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken promise: which one, and what happened."""

    promise: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.promise}: {self.detail}" if self.detail else self.promise


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that somebody sends to the run at a time."""

    time: float
    topic: str
    number: int


@dataclass
class World:
    """What outlives a process.

    Attributes:
        program: the program of the run.
        now: the time, in seconds since `EPOCH`.
        fixed: the nodes that do not fail any more.
        done: how often each step has acted.
        log: the same in order.
        names: the node that each step belongs to.
        held: the brackets whose resource is acquired and not released.
        booked, undone: how often each booking was made and undone.
        kept: the sagas that have succeeded.
        settled: the nodes after whose failure something recorded has begun, perhaps because of it.
        inbox: the messages, in the order in which they are sent.
        sent: the numbers of those that were sent.
        taken: the numbers of those that the run has taken, in order.
        delivered: the nodes that have received a message, by its number.
        problems: what has gone wrong.
    """

    program: Node
    now: float = 0.0
    fixed: set[str] = field(default_factory=set[str])
    done: Counter[StepKey] = field(default_factory=Counter[StepKey])
    log: list[str] = field(default_factory=list[str])
    names: dict[StepKey, str] = field(default_factory=dict[StepKey, str])
    held: set[str] = field(default_factory=set[str])
    booked: Counter[str] = field(default_factory=Counter[str])
    undone: Counter[str] = field(default_factory=Counter[str])
    kept: set[str] = field(default_factory=set[str])
    settled: set[str] = field(default_factory=set[str])
    inbox: list[Letter] = field(default_factory=list[Letter])
    sent: list[int] = field(default_factory=list[int])
    taken: list[int] = field(default_factory=list[int])
    delivered: dict[int, set[str]] = field(default_factory=dict[int, set[str]])
    problems: list[Problem] = field(default_factory=list[Problem])

    def __post_init__(self) -> None:
        self.ancestry = Ancestry.of(self.program)

    def blame(self, promise: str, detail: str = "") -> None:
        self.problems.append(Problem(promise, detail))

    def take(self, numbers: list[int]) -> None:
        """Note the messages that a life has taken. A later life may receive the others."""
        self.taken += numbers
        self.delivered = {n: nodes for n, nodes in self.delivered.items() if n in self.taken}

    def letter(self, number: int) -> Letter:
        return next(letter for letter in self.inbox if letter.number == number)

    def context_of(self, node: Node, part: str) -> list[tuple[Node, int]]:
        """Return the nodes around one of the steps of a node, from the inside out."""
        around = self.ancestry.around[node.name]
        if part != "undo":
            return list(around)
        # The saga that undoes a booking may be any one around it.
        sagas = self.ancestry.sagas(node.name)
        return list(self.ancestry.around[sagas[-1].name] if sagas else around)


def letters(program: Node, seed: str) -> list[Letter]:
    """Return the messages for a program: some early ones, and enough late ones for it to end."""
    waits = sum(node.kind.endswith("receive") for node in program)
    r = random.Random(f"letters {seed}")
    drawn = [
        (r.choice([0.3, 1, 2, 4, 9]) * r.random() * 8, r.choice("ab")) for _ in range(2 * waits)
    ]
    drawn += [(50.0 + 5 * n, topic) for n in range(4 * waits) for topic in "ab"]
    return [Letter(time, topic, number) for number, (time, topic) in enumerate(sorted(drawn))]


class Life:
    """What one process does in the world. Whatever it does after its death has no effect.

    Parameters:
        world: the world.
        seed: chooses how long things take in this life.

    Attributes:
        is_dead: whether the process has died.
        failed: the nodes that have failed in this life.
        held: the brackets whose resource this process has acquired by local code.
    """

    def __init__(self, world: World, seed: str) -> None:
        self.world, self._seed = world, seed
        self.is_dead = False
        self.failed: set[str] = set()
        self.held: set[str] = set()
        self._draws: Counter[str] = Counter()
        self._working: dict[str, Counter[int]] = {}

    # Chance.

    def _random(self, what: str) -> random.Random:
        """Return a source of chance that does not depend on what else has happened."""
        self._draws[what] += 1
        return random.Random(f"{self._seed} {what} {self._draws[what]}")

    def choose(self, what: str, choices: Sequence[A]) -> A:
        return self._random(what).choice(choices)

    async def pause(self, what: str, choices: Sequence[float]) -> None:
        await anyio.sleep(self.choose(what, choices))

    def shuffled(self, node: Node) -> list[Node]:
        """Return the items of a traversal in another order in each life."""
        items = list(node.parts)
        self._random(node.name).shuffle(items)
        return items

    async def read_slowly(self, node: Node) -> AsyncGenerator[Node]:
        """Yield the items of a traversal."""
        for item in node.parts:
            await self.pause(f"{node.name} read", [0, 0.2, 1])
            yield item

    # Failures.

    def fails(self, node: Node) -> bool:
        """Return whether a node that is broken fails, and note that."""
        if node.name in self.world.fixed:
            return False
        self.failed.add(node.name)
        return True

    def begin(self) -> None:
        """Note that something begins that is recorded: the failures so far may have led to it."""
        self.world.settled |= self.failed

    def can_be_corrected(self, names: Sequence[str]) -> bool:
        """Return whether these nodes have failed in this life, and nothing has ever begun after that."""
        return self.failed.issuperset(names) and self.world.settled.isdisjoint(names)

    # Work.

    async def work(
        self,
        node: Node,
        part: str,
        act: Callable[[], object],
        *,
        seconds: Sequence[float] = (0, 0.2, 1, 2),
    ) -> None:
        """Do something in a step: wait, and then act once on the world."""
        key, name = self.meet(node, part), step_name(node, part)
        context = self.world.context_of(node, part)
        with self._limited(context, part):
            self._check_resources(name, context)
            await _style_of(node, part)(self.choose(name, seconds), self.choose(name, [0.1, 1, 3]))
            if not self.is_dead:
                self.world.done[key] += 1
                self.world.log.append(name)
                act()

    def meet(self, node: Node, part: str = "") -> StepKey:
        """Note that a step of a node has begun. Return its identity."""
        self.begin()
        info, name = current_step(), step_name(node, part)
        key = StepKey(info.run_id, info.step)
        known = self.world.names.setdefault(key, name)
        if known != name:
            self.world.blame("two steps have one identity", f"{known} and {name}: {key}")
        return key

    def _check_resources(self, name: str, context: list[tuple[Node, int]]) -> None:
        for node, _ in context:
            if node.kind in ("bracket", "mixed bracket") and node.name not in self.world.held:
                self.world.blame(
                    "a resource is used while it is not held", f"{node.name} by {name}"
                )
            if node.kind == "local bracket" and node.name not in self.held and not self.is_dead:
                self.world.blame(
                    "a local resource is used while it is not held", f"{node.name} by {name}"
                )

    @contextmanager
    def _limited(self, context: list[tuple[Node, int]], part: str) -> Generator[None]:
        """Count the items of the traversals around that work at the same time."""
        # A finalizer may run while other items work, if its item was cancelled by an earlier life.
        is_finalizer = part in ("close", "end", "undo") or any(
            node.kind.endswith(" of") and at == 1 for node, at in context
        )
        places = [(n, i) for n, i in context if n.kind == "traverse" and not is_finalizer]
        for node, item in places:
            working = self._working.setdefault(node.name, Counter())
            working[item] += 1
            if len(+working) > node.count:
                self.world.blame(
                    "a limit is exceeded", f"{node.count} of {node.name}: {sorted(+working)}"
                )
        try:
            yield
        finally:
            for node, item in places:
                self._working[node.name][item] -= 1


def step_name(node: Node, part: str) -> str:
    """Return the name of the step of a node, or of one of its steps."""
    return f"{node.name}.{part}" if part else node.name


def node_name(step: str) -> str:
    """Return the name of the node that a step belongs to, from the name of the step."""
    return step.partition(".")[0]


async def _plainly(seconds: float, _rest: float) -> None:
    await anyio.sleep(seconds)


async def _slowly(seconds: float, rest: float) -> None:
    try:
        await anyio.sleep(seconds)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            await anyio.sleep(rest)
        raise


async def _stubbornly(seconds: float, _rest: float) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.sleep(seconds)


async def _fragilely(seconds: float, _rest: float) -> None:
    try:
        await anyio.sleep(seconds)
    except anyio.get_cancelled_exc_class():
        raise Broken(ABORTED) from None


def _style_of(node: Node, part: str) -> Callable[[float, float], Awaitable[None]]:
    """Return how a step reacts to a cancellation."""
    match node.kind, part:
        case ("slow step", _) | (_, "open"):
            return _slowly
        case "stubborn step", _:
            return _stubbornly
        case "fragile step", _:
            return _fragilely
        case _:
            return _plainly
