"""Absurd, as `compare.py` measures it: tasks on a queue in PostgreSQL.

Its sync client, which works through a batch of claimed tasks, needs less processor time than the async
one.
"""

# Absurd is in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from absurd_sdk import Absurd

from benchmarks.compared.measuring import (
    PADDING,
    Meter,
    Service,
    Submit,
    Work,
    main,
    measured_values,
    note,
)

QUEUE = "compare"
POLLING_SECONDS = 0.1
"""How often a worker looks for tasks when it found none. It is 0.25 seconds unless one asks for less."""
BATCH = 16
"""Tasks that a worker claims at once."""

is_down = False
value: Any = None


class Down(Exception):
    """The last step does not succeed yet."""


def prepared(url: str) -> Absurd:
    """A client of a database with its schema and queue, made as its documentation says."""
    absurdctl = Path(sys.executable).with_name("absurdctl")
    subprocess.run([absurdctl, "init", "-d", url], check=True, stdout=subprocess.DEVNULL)
    app = registered(url)
    app.create_queue(QUEUE)
    return app


def registered(url: str) -> Absurd:
    app = Absurd(url, queue_name=QUEUE, default_max_attempts=1)

    @app.register_task("count")
    def count(params: Any, ctx: Any) -> int:
        state = {"n": 0, "pad": PADDING}
        for _ in range(params["to"]):
            state = ctx.step(
                "increment", lambda state=state: {"n": state["n"] + 1, "pad": state["pad"]}
            )
        if params["ends"]:
            ctx.step("end", end)
        return state["n"]

    @app.register_task("produce")
    def produce(_params: Any, ctx: Any) -> None:
        ctx.step("produce", lambda: value)
        ctx.step("end", end)

    @app.register_task("work")
    def work(params: Any, ctx: Any) -> None:
        ctx.step("begin", lambda: begin(Work(**params)))

    return app


def end() -> None:
    if is_down:
        raise Down


def begin(work: Work) -> None:
    note(work)
    if work.seconds:
        time.sleep(work.seconds)


async def steps(meter: Meter, url: str, runs: int, steps: int) -> None:
    app = prepared(url)
    app.spawn("count", {"to": 2, "ends": False})
    app.work_batch()
    with meter("steps"):
        for _ in range(runs):
            app.spawn("count", {"to": steps, "ends": False})
        for _ in range(0, runs, BATCH):
            app.work_batch(batch_size=BATCH)
    app.close()


def fail_and_retry(app: Absurd, task: str, params: Any) -> Any:
    """Run a task that fails at its last step, and return how to resume it."""
    global is_down
    is_down = True
    task_id = app.spawn(task, params)["task_id"]
    app.work_batch()
    is_down = False

    async def resume() -> Any:
        app.retry_task(task_id, max_attempts=2)
        app.work_batch()
        return app.fetch_task_result(task_id)

    return resume


async def resume(meter: Meter, url: str, steps: int) -> None:
    app = prepared(url)
    for to in (2, steps):
        resume = fail_and_retry(app, "count", {"to": to, "ends": True})
        with meter("resume"):
            assert (await resume()).result == to
    app.close()


async def values(meter: Meter, url: str, values: Iterable[tuple[str, int]]) -> None:
    app = prepared(url)

    async def record(_kind: str, what: Any) -> Any:
        global value
        value = what
        return fail_and_retry(app, "produce", {})

    await measured_values(meter, record, values)
    app.close()


@asynccontextmanager
async def client(url: str) -> AsyncGenerator[Submit]:
    app = prepared(url)

    async def submit(work: Work) -> None:
        app.spawn("work", {"file": work.file, "name": work.name, "seconds": work.seconds})

    yield submit
    app.close()


def worker(url: str, *, has_limits: bool = False) -> None:
    assert not has_limits, "queues of Absurd have no limits"
    app = registered(url)
    print("ready", flush=True)
    app.start_worker(batch_size=BATCH, poll_interval=POLLING_SECONDS)


SERVICE = Service(
    client,
    worker,
    completed="SELECT count(*) FROM absurd.t_compare WHERE state = 'completed'",
)

if __name__ == "__main__":
    main(SERVICE, steps=steps, resume=resume, values=values)
