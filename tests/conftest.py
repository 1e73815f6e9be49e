"""What every test may ask for."""

from __future__ import annotations

import faulthandler
import gc
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

from effectflow.checkpoint import CheckpointStore
from effectflow.stores import MemoryStore

# Tests start hundreds of processes. Each would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that runs the tests in the background ignores Ctrl-C, and every process that they start would.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.exhaustive)])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """asyncio, and trio with `-m exhaustive`. Tests for which trio matters name `both_backends`."""
    return str(request.param)


@pytest.fixture
async def store() -> AsyncIterator[CheckpointStore]:
    """A store in memory. The folders of tests that need another one define their own."""
    async with MemoryStore() as store:
        yield store


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The connection string of a new database on a PostgreSQL server that all processes share."""
    # Imported late, as few tests need its driver.
    from tests.stores.servers import PostgresServer, new_database

    with PostgresServer.shared() as server:
        yield new_database(server.url)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Many tests wait for processes, servers and leases, so that there is time for two workers more."""
    return (os.cpu_count() or 1) + 2


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until everything is collected
    if not is_exhaustive(config):  # which meets the disk, too
        keep_files_in_memory()
    make_folder_of_servers(config)
    tell_less(config)
    config.pluginmanager.register(Watchdog())
    # A default run draws the same examples every time, and an exhaustive one new ones. A slow machine
    # is not a failure.
    is_sample = not is_exhaustive(config)
    examples = 30 if is_sample else 200
    settings.register_profile(
        "effectflow", deadline=None, max_examples=examples, derandomize=is_sample
    )
    settings.load_profile("effectflow")


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Leave all `sampled` cases but one to `-m exhaustive`. A default run does not even make them.

    Those of `-m exhaustive` are a third of all, and pytest would make each of them before it drops it.
    """
    yield
    of_function = {mark.name for mark in metafunc.definition.iter_markers()}
    default: list[Any] = []
    sampled = 0
    for case in metafunc._calls:
        marks = of_function.union(mark.name for mark in case.marks)
        sampled += "sampled" in marks and "exhaustive" not in marks
        if "sampled" in marks and sampled > 1:
            case.marks.append(pytest.mark.exhaustive.mark)
        elif "exhaustive" not in marks:
            default.append(case)
    if default and metafunc.config.getoption("-m") == "not exhaustive":
        metafunc._calls = default


def pytest_itemcollected(item: pytest.Item) -> None:
    """Draw more examples of every property with `-m exhaustive`."""
    is_property = isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)
    if is_property and is_exhaustive(item.config):
        item.add_marker(pytest.mark.exhaustive)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of the pages, and end these with those in a browser.

    One process takes them all then, and starts one browser.
    """

    def place(item: pytest.Item) -> tuple[bool, bool]:
        return item.path.parent.name != "ui", "chromium" in getattr(item, "fixturenames", ())

    items.sort(key=place)


def pytest_collection_finish() -> None:
    # Thousands of collected tests are not garbage, and every full collection would visit them. The
    # garbage among them stays: to find it takes half a second in each process.
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    # Neither is what the tests of a file leave in caches. Visiting it took a fifth of the processor time.
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def keep_files_in_memory() -> None:
    """Let pytest make its folders in memory, if there is room, and the variable does not say where.

    The stores sync every change to the disk, and the tests would wait for it many thousand times. They
    kill processes and servers, but not the machine, so nothing of what was written is lost either way.
    What a power loss leaves is told by the calls, not by a disk: see `tests/stores/test_power_loss.py`.
    """
    folder = "/dev/shm"
    with suppress(OSError):
        if shutil.disk_usage(folder).free >= 4 * 2**30:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", folder)


def tell_less(config: pytest.Config) -> None:
    """Let a process of pytest-xdist tell its controller only what that shows and counts.

    Of each test, it also tells that it begins and ends, and that its setup and its teardown have passed.
    For both processes together, that takes as long as many tests do. What takes 5 ms is told, because
    `--durations` shows it.
    """

    def send_shown(send: Callable[..., object], name: str, **event: Any) -> None:
        if name == "testreport":
            of = event["data"]
            has_passed = of["outcome"] == "passed"
            is_shown = of["when"] == "call" or not has_passed or of["duration"] >= 0.005
        else:
            is_shown = name not in ("logstart", "logfinish")
        if is_shown:
            send(name, **event)

    for plugin in config.pluginmanager.get_plugins():
        # pytest-xdist runs its module under another name, so its class cannot be imported.
        if type(plugin).__name__ == "WorkerInteractor":
            interactor: Any = plugin
            interactor.sendevent = partial(send_shown, interactor.sendevent)


def make_folder_of_servers(config: pytest.Config) -> None:
    """Make a folder for the servers of all processes of this test run.

    It is not in a folder of pytest: if root runs the tests, PostgreSQL runs as another user, and pytest
    makes its folders private when it starts. But it is where pytest makes them, which may be in memory.
    """
    name = "EFFECTFLOW_TEST_SERVERS"
    if name in os.environ:  # in a process of pytest-xdist
        return
    root = os.environ.get("PYTEST_DEBUG_TEMPROOT")
    folder = TemporaryDirectory(prefix="effectflow-servers-", dir=root, ignore_cleanup_errors=True)
    os.environ[name] = folder.name
    config.add_cleanup(folder.cleanup)


class Watchdog:
    """Ends the process if a test hangs, and shows where every thread stands.

    The option `faulthandler_timeout` of pytest does the same, but starts a thread for each test and
    waits for its end, which takes longer than many tests do.
    """

    SECONDS = 300

    def __init__(self) -> None:
        self._stderr = os.dup(2)  # pytest replaces it while tests run
        self._set_at = 0.0

    def pytest_runtest_logstart(self) -> None:
        now = time.monotonic()
        if now - self._set_at > 10:
            self._set_at = now
            faulthandler.dump_traceback_later(self.SECONDS, exit=True, file=self._stderr)

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        self._set_at = 0.0  # pytest has cancelled it

    def pytest_unconfigure(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        os.close(self._stderr)


def is_exhaustive(config: pytest.Config) -> bool:
    return config.getoption("-m") == "exhaustive"
