"""A pool of processes: workers that die, items that are cancelled, and what closing leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Never, TypeAlias

import anyio
import psutil
import pytest
from returns.result import Failure, Success

from effectflow import Do, Effect, effect, par, par_all, par_traverse, pure, step, workflow
from effectflow.effects import ExecutorLost, WorkerLost, from_async, from_fn
from effectflow.effects.event_loop import running_backend
from effectflow.executors import ProcessExecutor
from effectflow.executors.processes import WorkerPool
from tests.apps import App, both_backends
from tests.executors.conftest import interrupted, soon, until
from tests.executors.items import Folder, asleep, begin, deadly, held, meet, unclosable

pytestmark = pytest.mark.anyio

Children: TypeAlias = Callable[[], set[psutil.Process]]


def is_running(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture
def children() -> Children:
    """Return the processes that the test has started and not yet waited for, even dead ones."""
    before = set(psutil.Process().children())
    return lambda: set(psutil.Process().children()) - before


async def test_items_run_in_at_most_the_given_number_of_processes_which_closing_ends(
    folder: Folder, children: Children
) -> None:
    async with ProcessExecutor(lambda: folder, limit=2) as executor:
        pids = await par_traverse(range(8), lambda n: executor.apply(meet, n)).run_or_raise(None)
        assert {child.pid for child in children()} == set(pids)

    assert len(set(pids)) == 2
    assert os.getpid() not in pids
    assert not children()


async def test_only_the_item_of_a_killed_worker_runs_again(folder: Folder) -> None:
    async with ProcessExecutor(lambda: folder, limit=2) as executor:

        async def kill(_: object) -> None:
            await soon(lambda: len(folder.lines()) == 2)
            os.kill(folder.pid_of(0), signal.SIGKILL)
            await soon(lambda: len(folder.lines()) == 3)
            folder.put("go")

        items = par_traverse(range(6), lambda n: executor.apply(held, n))
        pids, _ = await par(items, from_async(kill)).run_or_raise(None)

    assert len(pids) == 6
    assert folder.begun() == {"0": 2, "1": 1, "2": 1, "3": 1, "4": 1, "5": 1}


async def test_workers_ignore_the_signal_to_save(folder: Folder) -> None:
    async with ProcessExecutor(lambda: folder, limit=2) as executor:

        async def ask_all_to_save(_: object) -> None:
            await soon(lambda: len(folder.lines()) == 2)
            for item in (0, 1):
                os.kill(folder.pid_of(item), signal.SIGUSR1)
            folder.put("go")

        items = par_traverse(range(4), lambda n: executor.apply(held, n))
        pids, _ = await par(items, from_async(ask_all_to_save)).run_or_raise(None)

    assert len(set(pids)) == 2
    assert folder.begun() == {"0": 1, "1": 1, "2": 1, "3": 1}


async def test_an_item_that_always_kills_its_worker_fails_alone(folder: Folder) -> None:
    async with ProcessExecutor(lambda: folder, limit=2, attempts=2) as executor:
        effects = [executor.apply(deadly if n == 3 else begin, n) for n in range(6)]
        failed = (await par_all(effects).run(None)).failure()
        assert len(await par_all(effects[:3]).run_or_raise(None)) == 3

    (lost,) = failed
    assert isinstance(lost, WorkerLost)
    assert (lost.item, lost.attempts, lost.reason) == ("3", 2, "killed by SIGKILL")
    assert folder.begun() == {"0": 2, "1": 2, "2": 2, "3": 2, "4": 1, "5": 1}


async def test_the_failure_names_the_exit_code_of_the_worker() -> None:
    async with ProcessExecutor(attempts=1) as executor:
        lost = (
            await executor.apply(lambda n: from_fn(lambda _: os._exit(n)), 7).run(None)
        ).failure()

    assert isinstance(lost, WorkerLost)
    assert lost.reason == "exited with code 7"
    assert "item 7 was given to a worker process, which died (exited with code 7)." in str(lost)


@pytest.mark.parametrize("options", [{"limit": 0}, {"attempts": 0}, {"grace": -1}])
def test_invalid_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ProcessExecutor(**options)


async def test_a_worker_killed_while_idle_is_replaced(folder: Folder) -> None:
    async with ProcessExecutor(lambda: folder, limit=1, attempts=2) as executor:
        first = await executor.apply(begin, 1).run_or_raise(None)
        os.kill(first, signal.SIGKILL)
        await soon(lambda: not is_running(first))
        second = await executor.apply(begin, 2).run_or_raise(None)

    assert first != second
    assert folder.begun() == {"1": 1, "2": 1}


@both_backends
async def test_a_cancelled_item_that_ends_in_time_leaves_its_worker_for_the_next(
    folder: Folder,
) -> None:
    async with ProcessExecutor(lambda: folder, limit=1, grace=30) as executor:
        warm = await executor.apply(begin, "warm").run_or_raise(None)
        await interrupted(executor.apply(asleep, "long"), None, lambda: folder.begun()["long"])
        # The finalizer runs before `interrupted` returns.
        assert folder.begun()["long-ended"] == 1
        after = await executor.apply(begin, "after").run_or_raise(None)

    assert warm == after


async def test_a_cancelled_item_that_keeps_computing_is_killed_with_its_process(
    folder: Folder,
) -> None:
    async with ProcessExecutor(lambda: folder, limit=1, grace=0.2) as executor:
        warm = await executor.apply(begin, "warm").run_or_raise(None)
        await interrupted(executor.apply(held, "busy"), None, lambda: folder.begun()["busy"])
        assert not is_running(warm)
        after = await executor.apply(begin, "after").run_or_raise(None)

    assert warm != after
    assert folder.begun()["busy"] == 1


async def test_cancelling_the_asyncio_task_cancels_the_item(folder: Folder) -> None:
    async with ProcessExecutor(lambda: folder, limit=1, grace=30) as executor:
        warm = await executor.apply(begin, "warm").run_or_raise(None)
        task = asyncio.create_task(executor.apply(asleep, "long").run(None))
        await soon(lambda: folder.begun()["long"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert folder.begun()["long-ended"] == 1
        assert await executor.apply(begin, "after").run_or_raise(None) == warm


def begun_and_soon_ended(folder: Folder) -> Callable[[], bool]:
    """Return whether the item `late` has begun. A second after that, let it end."""

    def look() -> bool:
        has_begun = bool(folder.begun()["late"])
        if has_begun:
            threading.Timer(1.0, folder.put, ["go"]).start()
        return has_begun

    return look


async def cancel_by_scope(effect: Effect[Any, Any, Any], env: object, folder: Folder) -> None:
    await interrupted(effect, env, begun_and_soon_ended(folder))


async def cancel_natively(effect: Effect[Any, Any, Any], env: object, folder: Folder) -> None:
    task = asyncio.create_task(effect.run(env))
    await soon(begun_and_soon_ended(folder))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("anyio_backend", "cancel"),
    [("asyncio", cancel_by_scope), ("trio", cancel_by_scope), ("asyncio", cancel_natively)],
)
async def test_an_item_that_ends_in_time_although_it_was_cancelled_is_recorded(
    folder: Folder, cancel: Callable[..., Any]
) -> None:
    """It computes without a pause, and its step need not run again."""
    async with ProcessExecutor(lambda: folder, limit=1, grace=30) as executor:
        warm = await executor.apply(begin, "warm").run_or_raise(None)

        @step
        def compute() -> Effect[object, Any, int]:
            return executor.apply(held, "late")

        @workflow
        def computing(_: None) -> Do[App, Any, int]:
            return (yield from compute())

        app = App()
        await cancel(computing.start(None, run_id="r"), app, folder)
        assert await computing.resume("r").run(app) == Success(warm)
    assert folder.begun() == {"warm": 1, "late": 1}


async def test_outside_a_run_a_late_value_is_dropped(folder: Folder) -> None:
    async with ProcessExecutor(lambda: folder, limit=1, grace=30) as executor:
        then = executor.apply(held, "late").and_then(lambda _: executor.apply(begin, "after"))
        await cancel_natively(then, None, folder)
    assert folder.begun() == {"late": 1}


@both_backends
async def test_an_item_cancelled_while_its_environment_is_made_does_not_begin(
    folder: Folder,
) -> None:

    def environment() -> Folder:
        folder.write(f"making {os.getpid()}")
        time.sleep(0.3)
        return folder

    async with ProcessExecutor(environment, limit=1) as executor:
        await interrupted(executor.apply(begin, "never"), None, folder.lines)
        await executor.apply(begin, "next").run_or_raise(None)

    assert folder.begun() == {"making": 1, "next": 1}


@both_backends
async def test_closing_ends_the_items_in_progress(folder: Folder, children: Children) -> None:
    results = []

    async def run(effect: Effect[object, object, int]) -> None:
        results.append(await effect.run(None))

    async with (
        anyio.create_task_group() as tasks,
        ProcessExecutor(lambda: folder, limit=1, grace=0.2) as executor,
    ):
        tasks.start_soon(run, executor.apply(held, "busy"))
        tasks.start_soon(run, executor.apply(held, "waiting"))
        await soon(folder.lines)

    assert [type(result.failure()) for result in results] == [ExecutorLost, ExecutorLost]
    assert len(folder.begun()) == 1
    assert not children()


async def test_large_items_and_values_can_be_sent() -> None:
    data = os.urandom(5_000_000)
    async with ProcessExecutor(limit=1) as executor:
        assert await executor.apply(lambda d: pure(d[::-1]), data).run(None) == Success(data[::-1])


async def test_the_output_of_an_item_goes_to_standard_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def shout(word: str, _: object) -> int:
        sys.stdout.write(f"{word}\n")
        os.write(1, b"raw\n")
        return len(sys.stdin.read())

    async with ProcessExecutor(limit=1) as executor:
        quiet = await executor.apply(lambda w: from_fn(partial(shout, w)), "loud").run(None)

    assert quiet == Success(0)
    assert capfd.readouterr().err == "loud\nraw\n"


async def test_an_environment_that_cannot_be_made_is_made_again_for_the_next_call(
    folder: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    def environment() -> Folder:
        if not folder.has("database"):
            raise ConnectionError("no database")
        return folder

    async with ProcessExecutor(environment, limit=1, attempts=1) as executor:
        for _ in range(3):
            with pytest.raises(ConnectionError, match="no database"):
                await executor.apply(begin, 1).run(None)
        folder.put("database")
        assert isinstance(await executor.apply(begin, 1).run(None), Success)

    assert capfd.readouterr().err == "", "the defect says everything"


async def test_entries_of_sys_path_that_are_not_text_are_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path])
    async with ProcessExecutor(limit=1) as executor:
        paths = await executor.apply(lambda _: from_fn(lambda _: sys.path), None).run_or_raise(None)

    assert paths == sys.path[1:]


async def test_a_process_that_an_item_forks_does_not_keep_the_pipes_open(folder: Folder) -> None:

    @effect
    def fork_and_die(folder: Folder, item: str) -> Never:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        folder.write(f"{item} {child}")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("dead")

    async with ProcessExecutor(lambda: folder, limit=1, attempts=1) as executor:
        result = await executor.apply(fork_and_die, "child").run(None)

    os.kill(folder.pid_of("child"), signal.SIGKILL)
    assert isinstance(result, Failure)


@both_backends
async def test_workers_run_the_event_loop_of_the_coordinator(anyio_backend: str) -> None:
    async with ProcessExecutor(limit=1) as executor:
        backend = executor.apply(lambda _: from_fn(lambda _: running_backend()), None)

        assert await backend.run(None) == Success(anyio_backend)


async def test_an_environment_that_does_not_close_is_ended_by_force(
    folder: Folder, children: Children
) -> None:
    async with ProcessExecutor(partial(unclosable, folder), limit=1, grace=0.2) as executor:
        await executor.apply(begin, 1).run_or_raise(None)

    assert folder.begun()["closing"] == 1
    assert not children()


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import anyio
from effectflow import par_traverse
from effectflow.effects import from_fn
from effectflow.executors import ProcessExecutor
from effectflow.executors.processes import WorkerPool

# A test in the background ignores SIGINT, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

def busy(item):
    def compute(_):
        with open("begun", "a") as begun:
            begun.write(f"{item} {os.getpid()}\\n")
        time.sleep(60)
    return from_fn(compute)

async def main():
    async with ProcessExecutor(limit=2, grace=0.5) as executor:
        await par_traverse(range(4), lambda n: executor.apply(busy, n)).run(None)

try:
    anyio.run(main, backend=sys.argv[1])
except (KeyboardInterrupt, BaseExceptionGroup):
    sys.exit(3)
"""


@pytest.fixture
def coordinator(folder: Folder, anyio_backend: str) -> Iterator[subprocess.Popen[str]]:
    """Another process, with two busy workers."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, anyio_backend],
        cwd=folder.path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            until(lambda: len(folder.lines()) == 2)
            yield process
        finally:
            process.kill()


async def test_workers_end_when_the_coordinator_is_killed(
    coordinator: subprocess.Popen[str], folder: Folder
) -> None:
    coordinator.kill()
    coordinator.wait()

    until(lambda: not any(is_running(folder.pid_of(item)) for item in range(2)), seconds=5)


async def test_ctrl_c_ends_the_workers_silently(
    coordinator: subprocess.Popen[str], folder: Folder
) -> None:
    os.killpg(coordinator.pid, signal.SIGINT)
    _, err = coordinator.communicate(timeout=30)

    assert (coordinator.returncode, err) == (3, "")
    assert not any(is_running(folder.pid_of(item)) for item in range(2))


class FakeWorker:
    """A fake worker process. `started` is set just before `start` returns."""

    started: anyio.Event
    is_alive = True

    @classmethod
    async def start(cls, _environment: bytes, _grace: float) -> FakeWorker:
        await anyio.sleep(0)
        cls.started.set()
        return cls()

    async def ask(self, call: bytes) -> bytes:
        for _ in range(10):
            await anyio.sleep(0)
        return call

    async def end(self) -> str:
        return "ended"


@both_backends
async def test_a_new_worker_answers_the_call_that_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("effectflow.executors.processes.WorkerProcess", FakeWorker)
    FakeWorker.started = anyio.Event()
    pool = WorkerPool(b"", limit=2, grace=1)
    replies: list[bytes] = []

    async def ask(call: bytes) -> None:
        reply, _ = await pool.ask(call)
        replies.append(reply)

    async def ask_once_another_has_started() -> None:
        await FakeWorker.started.wait()
        await ask(b"second")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask_once_another_has_started)
        tasks.start_soon(ask, b"first")

    assert sorted(replies) == [b"first", b"second"]
