"""LangGraph with its checkpointers of SQLite and PostgreSQL, as `compare.py` measures it.

`durability="sync"` makes each node durable before the next one begins. Its sync interface, with runs one
after another, needs less processor time than the async one.
"""

# LangGraph is in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, TypedDict

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from benchmarks.compared.measuring import PADDING, Meter, is_postgres, main, measured_values


class Down(Exception):
    """The last node does not succeed yet."""


class State(TypedDict):
    n: int
    pad: str


class Produced(TypedDict):
    value: Any


is_down = False
value: Any = None


@contextmanager
def saver(url: str) -> Generator[Any]:
    if is_postgres(url):
        with PostgresSaver.from_conn_string(url) as saver:
            saver.setup()
            yield saver
    else:
        with SqliteSaver.from_conn_string(url.removeprefix("sqlite:///")) as saver:
            saver.setup()
            yield saver


def increment(state: State) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def end(_state: Any) -> dict[str, Any]:
    if is_down:
        raise Down
    return {}


def counting(to: int, saver: Any) -> Any:
    return (
        StateGraph(State)
        .add_node("increment", increment)
        .add_node("end", end)
        .add_edge(START, "increment")
        .add_conditional_edges(
            "increment", lambda state: "end" if state["n"] >= to else "increment"
        )
        .add_edge("end", END)
        .compile(checkpointer=saver)
    )


def configured(thread: str, limit: int = 25) -> Any:
    return {"configurable": {"thread_id": thread}, "recursion_limit": limit + 10}


async def steps(meter: Meter, url: str, runs: int, steps: int) -> None:
    with saver(url) as checkpointer:
        # The node at the end is one of the steps.
        graph = counting(steps - 1, checkpointer)
        begin: Any = {"n": 0, "pad": PADDING}
        graph.invoke(begin, configured("first", steps), durability="sync")
        with meter("steps"):
            for run in range(runs):
                graph.invoke(begin, configured(str(run), steps), durability="sync")


async def resume(meter: Meter, url: str, steps: int) -> None:
    global is_down
    with saver(url) as checkpointer:
        for to in (2, steps):
            graph, config = counting(to, checkpointer), configured(f"to-{to}", to)
            is_down = True
            try:
                graph.invoke({"n": 0, "pad": PADDING}, config, durability="sync")
            except Down:
                is_down = False
            with meter("resume"):
                assert graph.invoke(None, config, durability="sync")["n"] == to


async def values(meter: Meter, url: str, values: Iterable[tuple[str, int]]) -> None:
    with saver(url) as checkpointer:
        graph: Any = (
            StateGraph(Produced)
            .add_node("produce", lambda _state: {"value": value})
            .add_node("end", end)
            .add_edge(START, "produce")
            .add_edge("produce", "end")
            .add_edge("end", END)
            .compile(checkpointer=checkpointer)
        )
        threads = iter(range(1_000))

        async def record(_kind: str, what: Any) -> Any:
            global is_down, value
            config, value, is_down = configured(str(next(threads))), what, True
            try:
                graph.invoke({"value": None}, config, durability="sync")
            except Down:
                is_down = False

            async def resume() -> None:
                graph.invoke(None, config, durability="sync")

            return resume

        await measured_values(meter, record, values)


if __name__ == "__main__":
    main(steps=steps, resume=resume, values=values)
