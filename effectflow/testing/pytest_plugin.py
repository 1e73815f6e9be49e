"""Fixtures for pytest, and a marker that crashes a test at every append to the store.

Active wherever effectflow is installed.

::

    @pytest.mark.anyio
    @pytest.mark.crash_everywhere
    async def test_a_cart_is_charged_for(checkpoints: Checkpoints, bank: Bank) -> None:
        app = App(checkpoints, bank)
        receipt = await checkout.start(cart, run_id="cart-7").run_or_raise(app)
        assert receipt.total == 14

The test runs once without a crash. Then it runs twice for each point just before and just after an
append to the store: it is crashed there, and run again like a restarted process, with its assertions
holding. Fixtures are the outside world, which survives the crash; each crash gets new ones. Objects
that the test function creates are lost with the process.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NoReturn

import pytest

# Plugins that repeat tests use this. pytest has no public name for it.
from _pytest.runner import runtestprotocol

from effectflow.checkpoint import Checkpoints
from effectflow.stores import MemoryStore
from effectflow.testing.clock import TestClock
from effectflow.testing.crash import crash_points
from effectflow.testing.faulty_store import Fault, FaultyStore

__all__ = ["checkpoints", "test_clock"]

_MARKER = "crash_everywhere"
_STORE = pytest.StashKey[FaultyStore]()


@pytest.fixture
def checkpoints(request: pytest.FixtureRequest) -> Checkpoints:
    """Return `Checkpoints` over an empty MemoryStore.

    For other options: `dataclasses.replace(checkpoints, format="cbor")`.
    """
    node: pytest.Item = request.node
    return Checkpoints(node.stash.get(_STORE, None) or MemoryStore())


@pytest.fixture
def test_clock() -> TestClock:
    """Return a `TestClock`: run an effect on it with `await test_clock.run(effect, env)`."""
    return TestClock()


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}: run the test once for each append to `checkpoints`, crashed before it or after "
        "it, and then again like a restarted process (effectflow)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test with the marker at all crash points, and report it as one test."""
    if item.get_closest_marker(_MARKER) is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _crash_everywhere(item, nextitem):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _crash_everywhere(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """Return the reports of the first failed run of the test, or of its last run."""
    test = _Repeated(item)
    whole = FaultyStore(MemoryStore())
    reports = test.run(whole)
    points = iter(crash_points(whole))
    while all(map(_is_well, reports)) and (point := next(points, None)):
        reports = test.run(FaultyStore(MemoryStore(), [point]))
    for report in reports:
        report.duration = test.seconds if report.when == "call" else 0.0
    end = test.end(nextitem)
    return reports if end.passed else [*reports[:-1], end]


def _is_well(report: pytest.TestReport) -> bool:
    # A test that is expected to fail may well do so after a crash.
    return report.passed or str(report.longrepr).startswith("[XPASS(strict)]")


class _Repeated:
    """A test that runs several times, with new fixtures each time. `seconds` is the total time."""

    def __init__(self, item: pytest.Item) -> None:
        self.seconds = 0.0
        self._item = item
        self._next_here = _NextHere.after(item)
        self._sections = 0

    def run(self, store: FaultyStore) -> list[pytest.TestReport]:
        """Run it completely, from the setup of its fixtures to their teardown."""
        self._item.stash[_STORE] = store
        reports = runtestprotocol(self._item, log=False, nextitem=self._next_here)
        self.seconds += sum(report.duration for report in reports)
        for report in reports:
            # An item keeps the output of all of its runs. Drop that of earlier runs.
            del report.sections[: self._sections]
        self._sections += len(reports[-1].sections)
        return reports

    def end(self, nextitem: pytest.Item | None) -> pytest.TestReport:
        """Tear down the fixtures with a wider scope that the next test does not need."""
        del self._item.stash[_STORE]

        def tear_down() -> None:
            setups = self._item.session._setupstate  # pyright: ignore[reportPrivateUsage]  # there is no public way
            setups.teardown_exact(nextitem)

        call = pytest.CallInfo[None].from_call(tear_down, when="teardown")
        return pytest.TestReport.from_item_and_call(self._item, call)


class _NextHere(pytest.Item):
    """Represents a next test in the same place, so that only this one is torn down."""

    @classmethod
    def after(cls, item: pytest.Item) -> _NextHere:
        place = item.getparent(pytest.Collector)
        assert place is not None
        return cls.from_parent(place, name=item.name)  # pyright: ignore[reportUnknownMemberType]  # pytest leaves its options untyped

    def runtest(self) -> NoReturn:
        raise AssertionError("nobody runs it")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the life that crashes before the life that counts."""
    store = item.stash.get(_STORE, None)
    if store is None:
        return (yield)
    if not store.unmet:
        return (yield from _whole(store))
    [point] = store.unmet
    try:
        return (yield from _crashed(item, store, point))
    except BaseException as raised:
        raised.add_note(f"crash_everywhere: crashed {point}, and started again")
        raise


def _whole(store: FaultyStore) -> Generator[None, object, object]:
    result = yield
    if not crash_points(store):
        pytest.fail(
            "crash_everywhere: the test starts no run with the fixture `checkpoints` of effectflow, "
            "so there is nothing to crash",
            pytrace=False,
        )
    return result


def _crashed(
    item: pytest.Item, store: FaultyStore, point: Fault
) -> Generator[None, object, object]:
    with store.life():
        item.runtest()
    calls = len(store.calls)
    begun = {call.run_id for call in store.calls if call.operation == "append"}
    result = yield
    forgotten = begun - {call.run_id for call in store.calls[calls:]}
    if forgotten:
        pytest.fail(
            f"crash_everywhere: crashed {point}, and run {forgotten.pop()!r} was not continued. "
            "Pass a run_id to `start` that is the same each time",
            pytrace=False,
        )
    return result
