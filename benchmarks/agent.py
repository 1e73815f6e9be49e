"""What the long state of an agent costs: a list of messages that each turn continues.

    python benchmarks/agent.py [--turns 2000]

Each turn is a step that receives the state and returns it with one more message of 4 kB. The run fails
in its last turn, and a new process resumes it. For three lengths, this prints the size of the database
beside that of the messages, and what recording, reading and resuming cost: the processor time, the
memory, and the longest time that the event loop stayed in one task. The goal for 2,000 turns: at most 1.5
times the messages, and less than 2 s and 100 MiB.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import anyio

from effectflow import Checkpoints, Do, SqliteStore, effect, step, workflow
from effectflow.checkpoint import read_checkpoint

TEXT = 4000


@dataclass(frozen=True)
class Env:
    checkpoints: Checkpoints
    is_down: bool = False


@dataclass(frozen=True)
class Message:
    role: str
    text: str


@dataclass(frozen=True)
class State:
    turn: int
    messages: list[Message]


def text_of(turn: int) -> str:
    return "".join(random.Random(turn).choices("abcdefghijklmnopqrstuvwxyz ", k=TEXT))


@step
@effect(errors=ConnectionError)
def answer(env: Env, state: State, turns: int) -> State:
    if env.is_down and state.turn == turns - 1:
        raise ConnectionError("the model is down")
    return State(state.turn + 1, [*state.messages, Message("user", text_of(state.turn))])


@workflow
def agent(turns: int) -> Do[Env, ConnectionError, int]:
    state = State(0, [])
    while state.turn < turns:
        state = yield from answer(state, turns)
    return len(state.messages)


def memory() -> float:
    """Return the most memory that this process has used, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def longest_stay(stays: list[float]) -> None:
    """Note how long the event loop does not come back to a task that sleeps for a moment."""
    while True:
        began = time.perf_counter()
        await anyio.sleep(0.001)
        stays[0] = max(stays[0], time.perf_counter() - began)


async def measured(what: str, path: str, turns: int) -> None:
    """Do one of the things, and print what it costs."""
    async with SqliteStore(path, durability="process") as store:
        checkpoints, stays = Checkpoints(store), [0.0]
        before, began = memory(), time.process_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(longest_stay, stays)
            if what == "record":
                await agent.start(turns, run_id="agent").run(Env(checkpoints, is_down=True))
            elif what == "resume":
                result = await agent.resume("agent").run(Env(checkpoints))
                assert result.unwrap() == turns
            else:
                found = await read_checkpoint(store, "agent")
                assert len(found.completed_steps) >= turns - 1
            tasks.cancel_scope.cancel()
        seconds = time.process_time() - began
    print(f"{seconds:.2f} s, {memory() - before:.0f} MiB, {stays[0] * 1000:.0f} ms on the loop")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--what", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what:
        anyio.run(measured, options.what, options.path, options.turns)
        return
    for turns in (options.turns // 4, options.turns // 2, options.turns):
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "runs.db")
            for what in ("record", "show", "resume"):
                command = [sys.executable, __file__, "--turns", str(turns)]
                done = subprocess.run(
                    [*command, "--what", what, "--path", path],
                    check=True,
                    capture_output=True,
                    text=True,
                )
                print(f"{turns:6,} turns, {what:6}: {done.stdout.strip()}")
            size = Path(path).stat().st_size / (turns * TEXT)
            print(f"{turns:6,} turns: the database has {size:.2f} times the bytes of the messages")


if __name__ == "__main__":
    main()
