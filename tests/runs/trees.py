"""Programs made of every operator, as trees that Hypothesis draws, and what their runs do."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
from hypothesis import strategies as st

from effectflow import (
    Checkpoints,
    Effect,
    TimedOut,
    bracket,
    fail,
    now,
    par,
    par_all,
    par_traverse,
    patched,
    pure,
    race,
    sleep,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import current_step
from effectflow.effects import die, from_async, never, par_try_all, suspend
from effectflow.graphs import StateGraph
from effectflow.mapreduce import MapReduce
from tests.apps import Broken, Crash

AnyEffect = Effect[Any, Any, Any]

End: TypeAlias = str
"""How a program ends, in every life: "ok", "fail", "die" for a defect, or "hang"."""


@dataclass
class TreeWorld:
    """What the steps of a tree did.

    Attributes:
        begun: the paths of steps, in order.
        uses: for the path of a step, the resources that it uses.
        releases: for the path of a step, the resource that it releases.
        thaw: where it is given, no step ends before it, and then each ends in a defect.
    """

    begun: list[str] = field(default_factory=list[str])
    uses: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    releases: dict[str, int] = field(default_factory=dict[str, int])
    thaw: anyio.Event | None = None


@dataclass(frozen=True)
class TreeApp:
    checkpoints: Checkpoints
    world: TreeWorld = field(default_factory=TreeWorld)


@dataclass(frozen=True)
class Tree:
    """A program: an operator, and the programs that it is made of."""

    kind: str
    parts: tuple[Tree, ...] = ()
    name: str = "a"

    def __repr__(self) -> str:
        inside = ", ".join(map(repr, self.parts))
        name = f":{self.name}" if self.kind in STEPS else ""
        return f"{self.kind}{name}({inside})" if inside else f"{self.kind}{name}"


STEPS = {"ok", "bad", "crash", "hang"}
_LEAVES: dict[str, End] = {
    "ok": "ok",
    "bad": "fail",
    "crash": "die",
    "hang": "hang",
    "plain fail": "fail",
    "plain die": "die",
    "now": "ok",
    "sleep": "ok",
    "pure": "ok",
}


_OF_STEPS = ["graph", "job"]
"""A state graph with two nodes, and a job with two items: each a step, in a nested run."""

_ONE_PART = ["result", "timeout", "step", "limited step"]
_TWO_PARTS = ["seq", "seq", "recover", "tap_err", "on_exit", "bracket"]
_TWO_PARTS += ["par", "par_all", "traverse", "async traverse", "race", "loan"]


def end_of(tree: Tree) -> End | None:
    """Return how a tree ends; None if that depends on the scheduling."""
    ends: list[End | None] = [end_of(part) for part in tree.parts]
    if None in ends:
        return None
    match tree.kind, ends:
        case _, []:
            return _LEAVES[tree.kind]
        case (("seq" | "graph" | "async traverse"), [first, second]):
            return first if first != "ok" else second
        case (("call" | "step" | "patched"), [only]):
            return only
        case "result", [only]:
            return "ok" if only == "fail" else only
        case "recover", [first, second]:
            return second if first == "fail" else first
        case "tap_err", [first, second]:
            return first if first != "fail" or second == "ok" else second
        case (("on_exit" | "bracket" | "loan"), [_, "hang"]):
            return None
        case (("on_exit" | "bracket" | "loan"), [first, second]):
            return first if first != "ok" else second
        case "par_all", _:
            if "die" in ends:
                return "die" if ends.count("die") == 1 else None
            return "hang" if "hang" in ends else "fail" if "fail" in ends else "ok"
        case (("par" | "traverse" | "job"), [first, second]):
            bad = [end for end in ends if end in ("fail", "die")]
            if len(bad) > 1:
                return None
            return bad[0] if bad else "hang" if "hang" in ends else "ok"
        case "race", [first, second]:
            finite = [end for end in ends if end != "hang"]
            if len(finite) > 1:
                return None
            return finite[0] if finite else "hang"
        case (("timeout" | "limited step"), [only]):
            return "fail" if only == "hang" else only
        case _:
            raise AssertionError(tree)


def trees(leaves: int = 8) -> st.SearchStrategy[Tree]:
    """Return trees that end in a way that does not depend on the scheduling."""
    name = st.sampled_from("ab")
    leaf = st.builds(Tree, st.sampled_from(sorted(_LEAVES)), st.just(()), name)

    def larger(part: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        one = st.builds(Tree, st.sampled_from(_ONE_PART), st.tuples(part), name)
        two = st.builds(Tree, st.sampled_from(_TWO_PARTS), st.tuples(part, part), name)
        return st.one_of(one, two, two)

    found = st.recursive(leaf, larger, max_leaves=leaves)
    return found.filter(lambda tree: end_of(tree) not in (None, "hang"))


def random_tree(random: Random, leaves: int) -> Tree:
    """Return a tree with this many leaves at most, whose end may depend on the scheduling.

    Unlike those of `trees`, it may have nested runs.
    """
    name = random.choice("ab")
    if leaves <= 1:
        return Tree(random.choice(sorted(_LEAVES)), (), name)
    kind = random.choice([*_ONE_PART, *_TWO_PARTS, "call", "call", *_OF_STEPS])
    if kind in _OF_STEPS:
        steps = [Tree(random.choice(["ok", "ok", "bad", "crash"]), (), each) for each in "ab"]
        return Tree(kind, tuple(steps), name)
    if kind in _ONE_PART or kind == "call":
        return Tree(kind, (random_tree(random, leaves - 1),), name)
    left = random.randint(1, leaves - 1)
    return Tree(kind, (random_tree(random, left), random_tree(random, leaves - left)), name)


def effect_of(tree: Tree) -> AnyEffect:
    """Return the program of a tree."""
    return _Building().build(tree, (), None)


class _Building:
    def __init__(self) -> None:
        self.resources = 0

    def build(self, tree: Tree, uses: tuple[int, ...], releases: int | None) -> AnyEffect:
        """Return the program of a tree, within the use or the release of resources."""
        parts = tree.parts

        def part(number: int) -> AnyEffect:
            return self.build(parts[number], uses, releases)

        match tree.kind:
            case "ok" | "bad" | "crash" | "hang":
                return self.step(tree, uses, releases)
            case "plain fail":
                return fail(Broken("plain"))
            case "plain die":
                return suspend(lambda: die(Crash("plain")))
            case "now":
                return now().map(lambda _: "now")
            case "sleep":
                return sleep(1).map(lambda _: "slept")
            case "pure":
                return pure("pure")
            case "seq":
                first, second = part(0), part(1)
                return first.and_then(lambda _: second)
            case "result":
                return part(0).result().map(repr)
            case "timeout":
                return part(0).timeout(_limit(parts[0]))
            case "recover":
                first, second = part(0), part(1)
                return first.or_else(lambda _: second)
            case "tap_err":
                first, second = part(0), part(1)
                return first.tap_err(lambda _: second)
            case "on_exit":
                return part(0).on_exit(part(1))
            case "bracket":
                self.resources += 1
                resource = self.resources
                acquire = self.step(Tree("ok"), uses, releases)
                use = self.build(parts[0], (*uses, resource), releases)
                release = self.build(parts[1], uses, resource)
                return bracket(acquire, lambda _: release, lambda _: use)
            case "loan":
                # No entry records the acquisition, which each life repeats.
                self.resources += 1
                use, release = part(0), self.build(parts[1], uses, self.resources)
                return bracket(pure("loan"), lambda _: release, lambda _: use)
            case "par":
                return par(part(0), part(1))
            case "par_all":
                return par_all([part(0), part(1)])
            case "traverse":
                both = [part(0), part(1)]
                return par_traverse([0, 1], lambda n: both[n], key=lambda n: f"k{n}")
            case "async traverse":
                slow = [part(0), part(1)]
                return suspend(lambda: par_try_all(read_slowly(slow), limit=1))
            case "race":
                return race([part(0), part(1)])
            case "step":
                around = self.around(parts[0], uses, releases)
                return with_checkpointing(f"around {tree.name}", around, error=Broken | TimedOut)
            case "limited step":
                around = self.around(parts[0], uses, releases)
                return limited(around, f"around {tree.name}", _limit(parts[0]))
            case "patched":
                first, second = self.step(Tree("ok", name=tree.name), uses, releases), part(0)
                new = first.and_then(lambda _: second)
                return patched(tree.name).and_then(lambda is_new: new if is_new else second)
            case "call":
                return nested(part(0)).call(None)
            case "graph":
                first, second = (self.action(part, uses, releases) for part in parts)
                return graph_of(first, second).call("")
            case "job":
                actions = [self.action(part, uses, releases) for part in parts]
                called = job_of(actions).call(None).map_err(lambda _: Broken("job"))
                return called.map(lambda result: result.value)
            case _:
                raise AssertionError(tree)

    def step(self, tree: Tree, uses: tuple[int, ...], releases: int | None) -> AnyEffect:
        return with_checkpointing(tree.name, self.action(tree, uses, releases), error=Broken)

    def around(self, part: Tree, uses: tuple[int, ...], releases: int | None) -> AnyEffect:
        """Return what a step with steps inside does."""
        begun = self.action(Tree("ok"), uses, releases)
        inside = self.build(part, uses, releases)
        return begun.and_then(lambda _: inside)

    def action(self, tree: Tree, uses: tuple[int, ...], releases: int | None) -> AnyEffect:
        """Return what a step does."""

        async def begin(app: TreeApp) -> None:
            path = in_all_runs(current_step().run_id, current_step().step)
            app.world.begun.append(path)
            app.world.uses[path] = uses
            if releases is not None:
                app.world.releases[path] = releases
            if app.world.thaw is not None:
                await app.world.thaw.wait()
                raise Crash("frozen")

        def body(app: TreeApp) -> AnyEffect:
            match tree.kind:
                case "ok":
                    return pure(tree.name)
                case "bad":
                    return fail(Broken(tree.name))
                case "crash":
                    return die(Crash(tree.name))
                case _:
                    return never()

        async def both(app: TreeApp) -> TreeApp:
            await begin(app)
            return app

        return from_async(both).and_then(body)


async def read_slowly(effects: list[AnyEffect]) -> AsyncGenerator[AnyEffect]:
    for effect in effects:
        await anyio.lowlevel.checkpoint()
        yield effect


def _limit(part: Tree) -> float:
    """Return the seconds that a part may take, so that only one that never ends is cut off."""
    return 10 if end_of(part) == "hang" else 1000


def limited(effect: AnyEffect, name: str, seconds: float) -> AnyEffect:
    """Return a step with a timeout."""

    @step(name=name, timeout=seconds)
    def around() -> Effect[TreeApp, Broken, Any]:
        return effect

    return around()


def in_all_runs(run_id: str, path: str) -> str:
    """Return a path that no step of another run has: that of the outermost run is as it is."""
    return path if run_id == "r" else f"{run_id}:{path}"


def workflow_of(tree: Tree) -> Any:
    """Return a workflow whose body is a tree."""
    return nested(effect_of(tree), "tree")


def nested(body: AnyEffect, name: str = "nested") -> Any:
    """Return a workflow with this body."""

    @workflow(name=name)
    def made(_: object) -> Effect[Any, Broken | TimedOut, Any]:
        return body

    return made


def graph_of(first: AnyEffect, second: AnyEffect) -> Any:
    """Return a graph with these two nodes, one after the other."""
    graph = StateGraph[Any, Broken, str]("graph").node("one", lambda _: first)
    graph = graph.node("two", lambda _: second).edge("one", "two")
    return graph.entry("one").exit("two").build()


def job_of(actions: list[AnyEffect]) -> Any:
    """Return a job that does these actions, one for each item, and counts them."""

    def act(number: int) -> Effect[Any, Broken, str]:
        return actions[number]

    return MapReduce[Any, Any, Any, Any](
        "job",
        items=lambda _: range(len(actions)),
        map=act,
        reduce=lambda values: pure(" ".join(values)),
        key=str,
        limit=2,
    )
