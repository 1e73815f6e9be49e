"""What a node of a graph costs, in memory and on SQLite, against a plain loop and against peers.

    pip install --group benchmarks      # the peers; without them their lines are left out
    python benchmarks/graphs.py

One graph everywhere: a node adds one to the state, a condition leads back to it until the number is
reached, and a last node ends it. In memory the floor is an async loop that awaits a function and asks the
condition. On SQLite it is a step of a `@workflow`, in the same run; every system makes each node durable
before the next one starts (LangGraph: `durability="sync"`), in WAL mode with synchronous=FULL.
pydantic-graph of this version keeps no state on disk.
"""

# The peers are not among what the checkers are run with.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Never, TypedDict

from effectflow import Checkpoints, Do, Effect, SqliteStore, pure, step, workflow
from effectflow.graphs import Graph, StateGraph
from effectflow.stores import MemoryStore

NODES = 20_000
NODES_OF_LANGGRAPH = 1_000
DURABLE_NODES = 500
ROUNDS = 5


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints


def add_one(number: int) -> Effect[object, Never, int]:
    return pure(number + 1)


def counting(to: int) -> Graph[App, Any, int]:
    return (
        StateGraph[App, Never, int]("counting", max_iterations=to + 1)
        .node("add", add_one)
        .node("end", pure)
        .edge("add", "end", when=lambda number: number >= to)
        .edge("add", "add")
        .entry("add")
        .exit("end")
        .build()
    )


async def plain_add_one(number: int) -> int:
    return number + 1


async def plain_loop(to: int) -> int:
    number, is_done = 0, False
    while not is_done:
        number = await plain_add_one(number)
        is_done = number >= to
    return number


async def effectflow_in_memory(to: int) -> int:
    return await counting(to).body(0).run_or_raise(App(Checkpoints(MemoryStore())))


async def pydantic_graph_in_memory(to: int) -> int:
    from pydantic_graph import GraphBuilder, StepContext

    builder = GraphBuilder(input_type=int, output_type=int)

    async def add(ctx: StepContext[None, None, int]) -> int:
        return ctx.inputs + 1

    async def end(ctx: StepContext[None, None, int]) -> int:
        return ctx.inputs

    add_node, end_node = builder.step(add), builder.step(end)
    ways = (
        builder.decision()
        .branch(builder.match(int, matches=lambda number: number >= to).to(end_node))
        .branch(builder.match(int).to(add_node))
    )
    builder.add(
        builder.edge_from(builder.start_node).to(add_node),
        builder.edge_from(add_node).to(ways),
        builder.edge_from(end_node).to(builder.end_node),
    )
    return await builder.build().run(inputs=0)


class Numbered(TypedDict):
    """The state that LangGraph's nodes change."""

    number: int


def langgraph_of(to: int, **options: Any) -> Any:
    from langgraph.graph import END, StateGraph

    async def add(state: Numbered) -> Mapping[str, int]:
        return {"number": state["number"] + 1}

    async def end(state: Numbered) -> Mapping[str, int]:
        return {"number": state["number"]}

    def way(state: Numbered) -> str:
        return "end" if state["number"] >= to else "add"

    graph = StateGraph(Numbered)
    graph.add_node("add", add)
    graph.add_node("end", end)
    graph.set_entry_point("add")
    graph.add_conditional_edges("add", way, ["add", "end"])
    graph.add_edge("end", END)
    return graph.compile(**options)


async def langgraph_in_memory(to: int) -> int:
    state = await langgraph_of(to).ainvoke({"number": 0}, {"recursion_limit": to + 10})
    return state["number"]


@step
def add_in_step(number: int) -> Effect[object, Never, int]:
    return pure(number + 1)


@workflow
def count_in_steps(to: int) -> Do[App, Never, int]:
    number = 0
    while number < to:
        number = yield from add_in_step(number)
    return number


async def steps_on_sqlite(path: Path, to: int) -> int:
    async with SqliteStore(path) as store:
        return await count_in_steps.start(to).run_or_raise(App(Checkpoints(store)))


async def effectflow_on_sqlite(path: Path, to: int) -> int:
    async with SqliteStore(path) as store:
        return await counting(to).start(0).run_or_raise(App(Checkpoints(store)))


async def langgraph_on_sqlite(path: Path, to: int) -> int:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        config = {"configurable": {"thread_id": "r"}, "recursion_limit": to + 10}
        graph = langgraph_of(to, checkpointer=saver)
        state = await graph.ainvoke({"number": 0}, config, durability="sync")
        return state["number"]


def seconds_per_node(
    run: Callable[[int], Awaitable[int]],
    nodes: int,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Of one run, from making the graph to its end; of the processor's time, as nothing waits."""
    began = clock()
    result = asyncio.run(_awaited(run(nodes)))
    assert result == nodes
    return (clock() - began) / nodes


async def _awaited(work: Awaitable[int]) -> int:
    return await work


def in_memory() -> None:
    floor = min(seconds_per_node(plain_loop, NODES) for _ in range(ROUNDS))
    print(f"{floor * 1e6:8.2f} us  plain async loop (floor)")
    rows: dict[str, tuple[Callable[[int], Awaitable[int]], int]] = {
        "effectflow": (effectflow_in_memory, NODES),
        "pydantic-graph": (pydantic_graph_in_memory, NODES),
        "LangGraph": (langgraph_in_memory, NODES_OF_LANGGRAPH),
    }
    for name, (run, nodes) in rows.items():
        with suppress(ModuleNotFoundError):
            cost = min(seconds_per_node(run, nodes) for _ in range(ROUNDS))
            goal = " (to reach: 10)" if name == "effectflow" else ""
            print(f"{cost * 1e6:8.2f} us  {name}: {(cost - floor) * 1e6:.1f} us more{goal}")
    for nodes in (1_000, 10_000, 100_000):
        cost = min(seconds_per_node(effectflow_in_memory, nodes) for _ in range(ROUNDS))
        print(f"{cost * 1e6:8.2f} us  effectflow, in a cycle of {nodes:,} visits")


def on_sqlite(folder: Path) -> None:
    runs: dict[str, Callable[[Path, int], Awaitable[int]]] = {
        "a step of a @workflow": steps_on_sqlite,
        "effectflow": effectflow_on_sqlite,
        "LangGraph": langgraph_on_sqlite,
    }
    costs: dict[str, list[float]] = {name: [] for name in runs}
    # Disks change their mind from one second to the next: every round has all of them.
    for number in range(ROUNDS):
        for name, run in runs.items():
            path = folder / f"{name}-{number}.db"
            with suppress(ModuleNotFoundError):
                work = partial(run, path)
                costs[name].append(seconds_per_node(work, DURABLE_NODES, time.perf_counter))
    floors = costs["a step of a @workflow"]
    for name, found in costs.items():
        if found:
            ratio = statistics.median(
                cost / floor for cost, floor in zip(found, floors, strict=True)
            )
            print(f"{statistics.median(found) * 1e6:8.0f} us  {name}: {ratio:.2f} x a step")


async def long_states() -> None:
    words = " ".join(str(number * number) for number in range(20_000))[:166_000]
    graph = (
        StateGraph[App, Never, dict[str, Any]]("reading")
        .node("read", lambda state: pure({**state, "visits": state["visits"] + 1}))
        .node("end", pure)
        .edge("read", "end", when=lambda state: state["visits"] >= 40)
        .edge("read", "read")
        .entry("read")
        .exit("end")
        .build()
    )
    store = MemoryStore()
    await graph.start({"visits": 0, "text": words}, run_id="r").run(App(Checkpoints(store)))
    saved = sum(len(record.body) for record in await store.read("r"))
    states = 43 * len(words)
    print(f"{saved:,} bytes for 43 states of {len(words):,}: {saved / states:.3f} of their size")


def main() -> None:
    print("Saved by 40 visits with a long text:")
    asyncio.run(long_states())
    print("In memory, for each node:")
    in_memory()
    print("Durable, on SQLite, for each node:")
    with tempfile.TemporaryDirectory() as name:
        on_sqlite(Path(name))


if __name__ == "__main__":
    main()
