"""effectflow, as `compare.py` measures it beside its peers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Never, TypedDict

import anyio

from benchmarks.compared.measuring import (
    LIMIT,
    PADDING,
    Item,
    Meter,
    Service,
    Submit,
    Work,
    main,
    measured_values,
    note,
)
from effectflow import (
    App,
    Checkpoints,
    Client,
    Do,
    Effect,
    Queue,
    Worker,
    effect,
    pure,
    step,
    workflow,
)
from effectflow.graphs import StateGraph
from effectflow.stores import open_store


@dataclass
class Env:
    checkpoints: Checkpoints
    value: Any = None
    """What the step of a run of one large value returns."""
    is_down: bool = field(default=False)
    """Whether the last step of a run fails."""


class Down(Exception):
    """The service that the last step asks does not answer."""


class State(TypedDict):
    n: int
    pad: str


BEGIN: State = {"n": 0, "pad": PADDING}


@step
def increment(state: State) -> Effect[object, Never, State]:
    return pure({"n": state["n"] + 1, "pad": state["pad"]})


@step
@effect(errors=Down)
def end(env: Env) -> None:
    if env.is_down:
        raise Down


@workflow
def count(to: int) -> Do[Env, Never, int]:
    state = BEGIN
    for _ in range(to):
        state = yield from increment(state)
    return state["n"]


async def steps(meter: Meter, url: str, runs: int, steps: int) -> None:
    async with open_store(url) as store:
        env = Env(Checkpoints(store))
        await count.start(2).run_or_raise(env)
        with meter("steps"):
            await asyncio.gather(*(count.start(steps).run_or_raise(env) for _ in range(runs)))


@workflow
def count_and_end(to: int) -> Do[Env, Down, int]:
    state = BEGIN
    for _ in range(to):
        state = yield from increment(state)
    yield from end()
    return state["n"]


async def resume(meter: Meter, url: str, steps: int) -> None:
    async with open_store(url) as store:
        env = Env(Checkpoints(store))
        for to in (2, steps):
            env.is_down = True
            await count_and_end.start(to, run_id=f"to-{to}").run(env)
            env.is_down = False
            with meter("resume"):
                assert await count_and_end.resume(f"to-{to}").run_or_raise(env) == to


def added(state: State) -> Effect[object, Never, State]:
    return pure({"n": state["n"] + 1, "pad": state["pad"]})


def ended(state: State) -> Effect[Env, Down, State]:
    return end().map(lambda _: state)


async def resume_graph(meter: Meter, url: str, steps: int) -> None:
    """As `resume`, of a graph."""
    async with open_store(url) as store:
        env = Env(Checkpoints(store))
        for to in (2, steps):
            graph = (
                StateGraph[Env, Down, State](f"to-{to}", max_iterations=to + 1)
                .node("add", added)
                .node("end", ended)
                .edge("add", "end", when=lambda state, to=to: state["n"] >= to)
                .edge("add", "add")
                .entry("add")
                .exit("end")
                .build()
            )
            env.is_down = True
            await graph.start(BEGIN, run_id=f"to-{to}").run(env)
            env.is_down = False
            with meter("resume"):
                assert (await graph.resume(f"to-{to}").run_or_raise(env))["n"] == to


@step
@effect
def some_bytes(env: Env) -> bytes:
    return env.value


@step
@effect
def items(env: Env) -> list[Item]:
    return env.value


@step
@effect
def ints(env: Env) -> list[int]:
    return env.value


PRODUCE: dict[str, Callable[[], Effect[Env, Never, Any]]] = {
    "bytes": some_bytes,
    "items": items,
    "ints": ints,
}


@workflow
def produce_and_end(kind: str) -> Do[Env, Down, None]:
    yield from PRODUCE[kind]()
    yield from end()


async def values(meter: Meter, url: str, values: Iterable[tuple[str, int]]) -> None:
    async with open_store(url) as store:
        env, run_ids = Env(Checkpoints(store)), iter(range(1_000))

        async def record(kind: str, value: Any) -> Any:
            env.value, env.is_down, run_id = value, True, str(next(run_ids))
            await produce_and_end.start(kind, run_id=run_id).run(env)
            env.is_down = False
            return lambda: produce_and_end.resume(run_id).run_or_raise(env)

        await measured_values(meter, record, values)


@step
@effect
async def begin(_env: object, work: Work) -> None:
    note(work)
    if work.seconds:
        await anyio.sleep(work.seconds)


@workflow
def work(work: Work) -> Do[Env, Never, None]:
    yield from begin(work)


@asynccontextmanager
async def client(url: str) -> AsyncGenerator[Submit]:
    async with Client(Checkpoints(open_store(url))) as client:
        yield lambda each: client.submit(work, each, key=each.key)


def app(url: str, *, has_limits: bool = False) -> App[Env]:
    queues = [Queue("work", limit=LIMIT, per_key=1)] if has_limits else []
    store = open_store(url)
    return App[Env]([work], environment=Env, checkpoints=Checkpoints(store), queues=queues)


def worker(url: str, *, has_limits: bool = False) -> None:
    async def serve() -> None:
        async with Worker(app(url, has_limits=has_limits)):
            print("ready", flush=True)
            await anyio.sleep_forever()

    anyio.run(serve)


SERVICE = Service(
    client,
    worker,
    completed="SELECT count(*) FROM effectflow.runs WHERE status = 'completed'",
)

if __name__ == "__main__":
    main(SERVICE, steps=steps, resume=resume, resume_graph=resume_graph, values=values)
