"""Effects and workflows made of programs, by the public names of the library only.

Each effect yields a text. What a flow has seen is passed on as `given`, a digest, and is an argument of
each later step. So if an engine replays anything differently, the arguments of later steps differ.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, cast

from returns.result import Failure, Result

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    RetryPolicy,
    TimedOut,
    ask,
    bracket,
    compensate,
    do,
    effect,
    fail,
    now,
    par,
    par_all,
    par_traverse,
    publish,
    pure,
    race,
    random,
    saga,
    sleep,
    step,
    uuid,
    workflow,
)
from effectflow.effects import first_success
from tests.exploration.lives import SIGNALS, AnyWorkflow, Subject, shown
from tests.exploration.programs import Node
from tests.exploration.world import Broken, Bug, Life, step_name

AnyEffect = Effect[Any, Any, Any]

ONCE_MORE = RetryPolicy.constant(0.5).with_max_retries(1)
PATIENCE = 2.0
"""The seconds that an acquisition with a timeout may take."""


@dataclass(frozen=True)
class App:
    """The environment of programs."""

    checkpoints: Checkpoints
    life: Life


def subject_of(program: Node) -> Subject:
    """Return a program as something that lives."""
    called = [workflow_of(node.parts[0], node.name) for node in program if node.kind == "call"]
    return Subject(workflow_of(program), App, called)


@lru_cache(100)
def workflow_of(program: Node, name: str = "explored") -> AnyWorkflow:
    """Return a workflow whose body is a program."""

    @workflow(name=name)
    def explored(given: str) -> Effect[App, Broken, str]:
        return effect_of(program, given)

    return explored


def effect_of(node: Node, given: str) -> AnyEffect:
    """Return the effect of a program."""
    parts = [partial(effect_of, part) for part in node.parts]
    match node.kind:
        case "step" | "slow step" | "stubborn step" | "fragile step":
            return step_of(node, given)
        case "failing step" | "retried step":
            return step_of(node, given)
        case "local":
            return wait_locally(node)
        case "failing local":
            return fail_locally(node)
        case "bug":
            return stumble(node)
        case "sleep":
            return recorded(sleep(node.seconds)).map(lambda _: "slept")
        case "receive" | "inner receive":
            return recorded(SIGNALS[node.how].wait()).and_then(lambda number: receive(node, number))
        case "value":
            return recorded(value_of(node))
        case "publish":
            return recorded(publish(node.name, given)).map(lambda _: "published")
        case "seq":
            return in_sequence(node.parts, given)
        case "chain":
            return chained(node.parts, given)
        case "coroutine":
            return in_coroutine(node, given)
        case "par":
            return par(*(part(given) for part in parts)).map(" ".join)
        case "par_all":
            return par_all([part(given) for part in parts]).map(" ".join).map_err(together)
        case "race":
            return race([part(given) for part in parts])
        case "first_success":
            return first_success([part(given) for part in parts]).map_err(together)
        case "timeout":
            return limited(node, parts[0](given), node.seconds)
        case "recover":
            first, second = parts
            return first(given).or_else(lambda error: second(digest(given, shown(error))))
        case "try":
            return trying(node, given)
        case "step of" | "limited step of":
            return unit(node, given)
        case "call":
            return recorded(workflow_of(node.parts[0], node.name).call(given))
        case "bracket" | "local bracket" | "mixed bracket" | "timed bracket":
            return bracketed(node, given)
        case "finally of":
            return parts[0](given).on_exit(parts[1](given))
        case "release of":
            return bracket(pure("x"), lambda _: parts[1](given), lambda _: parts[0](given))
        case "acquire of":
            return bracket(
                parts[1](given), lambda _: pure(None), lambda v: parts[0](digest(given, v))
            )
        case "finally":
            return parts[0](given).on_exit(wait_locally(node))
        case "finally step":
            return parts[0](given).on_exit(step_of(node, given, "end"))
        case "traverse":
            return traversal(node, given)
        case "saga":
            return saga_of(node, given)
        case "book":
            return compensate(
                step_of(node, given, "book"), lambda booking: step_of(node, booking, "undo")
            )
        case _:
            raise ValueError(f"unknown kind of program: {node.kind}")


def digest(given: str, value: str) -> str:
    return blake2b(f"{given} {value}".encode(), digest_size=4).hexdigest()


# Failures.


def together(errors: Iterable[Broken]) -> Broken:
    """Return several failures as one."""
    return Broken("+".join(sorted(name for error in errors for name in error.names)))


def limited(node: Node, work: AnyEffect, seconds: float) -> AnyEffect:
    return recorded(work.timeout(seconds)).map_err(partial(as_late, node))


def as_late(node: Node, error: Broken | TimedOut) -> Broken:
    return Broken(f"timeout {node.name}") if isinstance(error, TimedOut) else error


@do
def trying(node: Node, given: str) -> Do[App, Broken, str]:
    first, second = node.parts
    try:
        return (yield from effect_of(first, given))
    except Exception as error:
        cause = shown(error)
    handled = yield from effect_of(second, digest(given, cause))
    return f"handled({handled})"


# Leaves.


@effect
def note_beginning(app: App) -> None:
    app.life.begin()


def recorded(work: AnyEffect) -> AnyEffect:
    """Return an effect that a journal records when it begins. Steps note that themselves."""
    return note_beginning().and_then(lambda _: work)


@effect
async def wait_locally(app: App, node: Node) -> str:
    await app.life.pause(node.name, [0, 0.1, 1, 3])
    return node.name


@effect(errors=Broken)
async def fail_locally(app: App, node: Node) -> str:
    await app.life.pause(node.name, [0, 0.1, 1])
    if app.life.fails(node):
        raise Broken(node.name)
    return node.name


@effect
def stumble(app: App, node: Node) -> str:
    if app.life.fails(node):
        raise Bug(node.name)
    return node.name


@effect
def receive(app: App, node: Node, number: int) -> str:
    if not app.life.is_dead:
        app.life.world.delivered.setdefault(number, set()).add(node.name)
    return f"message {number}"


def value_of(node: Node) -> AnyEffect:
    match node.how:
        case "now":
            return now().map(str)
        case "random":
            return random().map(str)
        case _:
            return uuid().map(str)


# Steps.


def step_of(node: Node, given: str, part: str = "") -> AnyEffect:
    """Return the step of a node, or one of its steps."""
    return _step(node, part)(given)


@lru_cache(1000)
def _step(node: Node, part: str) -> Any:
    @step(name=step_name(node, part), retry=ONCE_MORE if node.kind == "retried step" else None)
    def act(given: str) -> Effect[App, Broken, str]:
        return perform(node, part)

    return act


@effect(errors=Broken)
async def perform(app: App, node: Node, part: str) -> str:
    life, world, name = app.life, app.life.world, node.name
    match part:
        case "open" if node.kind == "timed bracket":
            # Nobody knows whether an acquisition that was too late has happened, so nothing is held.
            await life.work(node, part, lambda: None, seconds=[1, 50])
        case "open":
            await life.work(node, part, lambda: world.held.add(name))
            await life.pause(f"{name} opened", [0, 0.2, 1])
        case "close":
            await life.work(node, part, lambda: world.held.discard(name))
        case "book":
            await life.work(node, part, lambda: world.booked.update([name]))
        case "undo":
            await life.work(node, part, lambda: world.undone.update([name]))
        case _:
            await life.work(node, part, lambda: None)
            if has_failed(life, node):
                raise Broken(name)
    return step_name(node, part)


def has_failed(life: Life, node: Node) -> bool:
    if node.kind == "retried step":
        return life.world.done[life.meet(node)] < node.count and life.fails(node)
    return node.kind == "failing step" and life.fails(node)


def unit(node: Node, given: str) -> AnyEffect:
    """Return a step with a program inside."""
    return _unit(node)(given).map_err(partial(as_late, node))


@lru_cache(1000)
def _unit(node: Node) -> Any:
    retry = ONCE_MORE if node.count > 1 else None

    @step(name=node.name, retry=retry, timeout=node.seconds or None)
    def around(given: str) -> Effect[App, Broken, str]:
        return meet(node).and_then(lambda _: effect_of(node.parts[0], given))

    return around


@effect
def meet(app: App, node: Node) -> None:
    app.life.meet(node)


# Operators.


@do
def in_sequence(parts: Sequence[Node], given: str) -> Do[App, Broken, str]:
    values: list[str] = []
    for part in parts:
        values.append((yield from effect_of(part, given)))
        given = digest(given, values[-1])
    return " ".join(values)


def in_coroutine(node: Node, given: str) -> AnyEffect:
    """Return the same as a coroutine that awaits effects. Today's type checkers reject that."""

    async def body() -> str:
        app: App = await cast("Any", ask(App))
        values: list[str] = []
        seen = given
        for part in node.parts:
            values.append(await cast("Any", effect_of(part, seen)))
            seen = digest(seen, values[-1])
            await app.life.pause(f"{node.name} between", [0, 0.1, 1])
        return " ".join(values)

    return cast("Any", do)(body)()


def chained(parts: Sequence[Node], given: str) -> AnyEffect:
    first, *rest = parts
    if not rest:
        return effect_of(first, given)

    def go_on(value: str) -> AnyEffect:
        return chained(rest, digest(given, value)).map(lambda values: f"{value} {values}")

    return effect_of(first, given).and_then(go_on)


def bracketed(node: Node, given: str) -> AnyEffect:
    def use(resource: str) -> AnyEffect:
        return effect_of(node.parts[0], digest(given, resource))

    def close(resource: str) -> AnyEffect:
        return step_of(node, resource, "close")

    opened = step_of(node, given, "open")
    match node.kind:
        case "bracket":
            return bracket(opened, close, use)
        case "mixed bracket":
            return bracket(opened, lambda it: wait_locally(node).and_then(lambda _: close(it)), use)
        case "timed bracket":
            return bracket(limited(node, opened, PATIENCE), close, use)
        case _:
            return bracket(open_locally(node), lambda _: close_locally(node), use)


@effect
async def open_locally(app: App, node: Node) -> str:
    await app.life.pause(f"{node.name} open", [0, 0.1, 2])
    app.life.held.add(node.name)
    return node.name


@effect
async def close_locally(app: App, node: Node) -> None:
    await app.life.pause(f"{node.name} close", [0, 0.1, 1])
    app.life.held.discard(node.name)


def saga_of(node: Node, given: str) -> AnyEffect:
    parts = [effect_of(part, given) for part in node.parts] if node.how == "par" else []
    work = par(*parts).map(" ".join) if parts else in_sequence(node.parts, given)
    begun = enter(node).and_then(lambda _: saga(work))
    return begun.and_then(lambda value: keep(node, value))


@effect
def enter(app: App, node: Node) -> None:
    """Forget what an earlier life knew about a saga, whose end may not have been saved."""
    if not app.life.is_dead:
        app.life.world.kept.discard(node.name)


@effect
def keep(app: App, node: Node, value: str) -> str:
    if not app.life.is_dead:
        app.life.world.kept.add(node.name)
    return value


# Traversals.


def traversal(node: Node, given: str) -> AnyEffect:
    items = {part.name: part for part in node.parts}

    def of(name: str) -> AnyEffect:
        return effect_of(items[name], given)

    def traverse(app: App) -> AnyEffect:
        match node.how:
            case "keyed":
                return by_key(node, [item.name for item in app.life.shuffled(node)], of)
            case "async" if node.is_patient:
                return par_all(slow_effects(app, node, of), limit=node.count).map_err(together)
            case "async":
                return par_traverse(slow_names(app, node), of, limit=node.count)
            case _ if node.is_patient:
                return par_all(map(of, items), limit=node.count).map_err(together)
            case _:
                return par_traverse(items, of, limit=node.count)

    return ask(App).and_then(traverse).map(" ".join)


async def slow_names(app: App, node: Node) -> AsyncGenerator[str]:
    async with aclosing(app.life.read_slowly(node)) as items:
        async for item in items:
            yield item.name


async def slow_effects(app: App, node: Node, of: Any) -> AsyncGenerator[AnyEffect]:
    async with aclosing(slow_names(app, node)) as names:
        async for name in names:
            yield of(name)


def by_key(node: Node, names: list[str], of: Any) -> AnyEffect:
    """Traverse items that are in another order in each life. The values are in the order of the names."""
    if not node.is_patient:
        each = par_traverse(names, of, limit=node.count, key=str)
        return each.map(lambda values: in_order(names, values))
    each = par_traverse(names, lambda name: of(name).result(), limit=node.count, key=str)
    return each.and_then(lambda results: all_or_failures(in_order(names, results)))


def in_order(names: list[str], values: list[Any]) -> list[Any]:
    found = dict(zip(names, values, strict=True))
    return [found[name] for name in sorted(names)]


def all_or_failures(results: list[Result[str, Broken]]) -> AnyEffect:
    errors = [result.failure() for result in results if isinstance(result, Failure)]
    return fail(together(errors)) if errors else pure([result.unwrap() for result in results])
