"""For pytest: fixtures, markers that repeat a test with crashes or in other orders, and a check.

It is loaded wherever effectflow is installed, and does nothing for a test that uses none of these. The
ini option `effectflow_changed_arguments` turns on the check: a test fails if its steps change their
arguments.

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

A test with `@pytest.mark.explore(seeds=20)` runs once for each seed, with new fixtures. The seed chooses
the order in which its runs take what arrives. See `effectflow.testing.explore`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, NoReturn, cast

import pytest

# Plugins that repeat tests use this. pytest has no public name for it.
from _pytest.runner import runtestprotocol

# Every test session loads this module, so it imports the rest where it is used.
if TYPE_CHECKING:
    from effectflow.checkpoint import Checkpoints, CheckpointStore
    from effectflow.testing.doubles import TestClock
    from effectflow.testing.faulty_store import CrashPoint, Fault, FaultyStore
    from effectflow.testing.orders import Explorer

__all__ = ["checkpoints", "test_clock"]

_MARKER = "crash_everywhere"
_EXPLORE = "explore"
_STORE = pytest.StashKey["CheckpointStore"]()
_EXPLORER = pytest.StashKey["tuple[int, Explorer] | str"]()
_POINTS = pytest.StashKey["list[CrashPoint]"]()

_CHANGED_ARGUMENTS = "effectflow_changed_arguments"


@pytest.fixture
def checkpoints(request: pytest.FixtureRequest) -> Checkpoints:
    """Return `Checkpoints` over an empty MemoryStore.

    For other options: `dataclasses.replace(checkpoints, format="cbor")`.
    """
    from effectflow.checkpoint import Checkpoints
    from effectflow.stores import MemoryStore

    node: pytest.Item = request.node
    return Checkpoints(node.stash.get(_STORE, None) or MemoryStore())


@pytest.fixture
def test_clock() -> TestClock:
    """Return a `TestClock`: run an effect on it with `await test_clock.run(effect, env)`."""
    from effectflow.testing.doubles import TestClock

    return TestClock()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini option of the check."""
    parser.addini(
        _CHANGED_ARGUMENTS,
        "fail a test whose steps change their arguments (effectflow)",
        type="bool",
        default=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and the check if it is asked for."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(at=None): run the test once for each append to `checkpoints`, crashed before it or "
        "after it, and then again like a restarted process; with at=[before(STEP), after(STEP)] only for "
        "the appends of these steps (effectflow)",
    )
    config.addinivalue_line(
        "markers",
        f"{_EXPLORE}(seeds=20): run the test once for each seed, which chooses the order in which its "
        "runs take what arrives; with seeds=[7] only for this one (effectflow)",
    )
    if config.getini(_CHANGED_ARGUMENTS):
        config.pluginmanager.register(_ArgumentCheck(), _CHANGED_ARGUMENTS)


class _ArgumentCheck:
    """Watches whether the steps of tests change their arguments."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail a test that passes otherwise. If it fails, only add what its steps changed."""
        from effectflow.testing.changed_arguments import ChangedArguments

        with ChangedArguments() as changed:
            try:
                result = yield
            except BaseException as raised:
                for message in changed.found:
                    raised.add_note(f"effectflow: {message}")
                raise
        if changed.found:
            pytest.fail("\n".join(f"effectflow: {each}" for each in changed.found), pytrace=False)
        return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test with a marker at all crash points, or for all seeds, and report it as one test."""
    is_explored = item.get_closest_marker(_EXPLORE) is not None
    if not is_explored and item.get_closest_marker(_MARKER) is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    test = _Repeated(item)
    reports = (_explore if is_explored else _crash_everywhere)(item, test)
    for report in reports:
        report.duration = test.seconds if report.when == "call" else 0.0
    end = test.end(nextitem)
    for report in reports if end.passed else [*reports[:-1], end]:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _crash_everywhere(item: pytest.Item, test: _Repeated) -> list[pytest.TestReport]:
    """Return the reports of the first failed run of the test, or of its last run."""
    from effectflow.stores import MemoryStore
    from effectflow.testing.faulty_store import FaultyStore

    reports = test.run(FaultyStore(MemoryStore()))
    points = iter(item.stash.get(_POINTS, ()))
    while all(map(_is_as_expected, reports)) and (point := next(points, None)):
        reports = test.run(FaultyStore(MemoryStore(), [point]))
    return reports


def _explore(item: pytest.Item, test: _Repeated) -> list[pytest.TestReport]:
    """Return the reports of the last run, or of the one in the shortest order that fails."""
    from effectflow.stores import MemoryStore
    from effectflow.testing.orders import Choices, Explorer, searched_orders

    seeds: list[int] = []
    try:
        seeds = _seeds_of(item)
    except (TypeError, ValueError) as error:
        item.stash[_EXPLORER] = str(error)
    if not seeds:
        return test.run(MemoryStore())
    search = searched_orders(seeds)
    reports: list[pytest.TestReport] = []
    failed: list[pytest.TestReport] = []
    made: Choices | None = None
    with suppress(StopIteration):
        while not any(report.skipped for report in reports):
            seed, choose = search.send(made)
            item.stash[_EXPLORER] = seed, (explorer := Explorer(choose))
            reports, made = test.run(MemoryStore()), None
            if not all(map(_is_as_expected, reports)):
                failed, made = reports, explorer.choices
    return failed or reports


def _seeds_of(item: pytest.Item) -> list[int]:
    from effectflow.testing.orders import checked_seeds

    marker = item.get_closest_marker(_EXPLORE)
    assert marker is not None
    if item.get_closest_marker(_MARKER) is not None:
        raise TypeError("a test can be crashed or explored, not both: remove one of the markers")
    if marker.args or marker.kwargs.keys() - {"seeds"}:
        given = marker.args or marker.kwargs
        raise TypeError(f"the marker takes only seeds, such as explore(seeds=20), not {given}")
    seeds: object = marker.kwargs.get("seeds", 20)
    return checked_seeds(range(seeds) if type(seeds) is int else seeds)


def _is_as_expected(report: pytest.TestReport) -> bool:
    # A test that is expected to fail may well do so after a crash.
    return report.passed or str(report.longrepr).startswith("[XPASS(strict)]")


class _Repeated:
    """A test that runs several times, with new fixtures each time. `seconds` is the total time."""

    def __init__(self, item: pytest.Item) -> None:
        self.seconds = 0.0
        self._item = item
        self._next_here = _NextHere.after(item)
        self._sections = 0

    def run(self, store: CheckpointStore) -> list[pytest.TestReport]:
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
        raise AssertionError("this item never runs")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the life that crashes before the life that counts, or explore the runs of the test."""
    explored, given = item.stash.get(_EXPLORER, None), item.stash.get(_STORE, None)
    if explored is not None:
        return (yield from _in_order(explored))
    if given is None:
        return (yield)
    store = cast("FaultyStore", given)
    if not store.unmet:
        result = yield
        item.stash[_POINTS] = _crash_points(item, store)
        return result
    [point] = store.unmet
    try:
        return (yield from _crashed(item, store, point))
    except BaseException as raised:
        raised.add_note(f"crash_everywhere: crashed {point}, and started again")
        raise


def _in_order(explored: tuple[int, Explorer] | str) -> Generator[None, object, object]:
    """Run a test in an order. Note the order at what the test raises."""
    from effectflow.testing.orders import shown

    if isinstance(explored, str):
        pytest.fail(f"explore: {explored}", pytrace=False)
    seed, explorer = explored
    try:
        with explorer:
            result = yield
    except BaseException as raised:
        order = shown(explorer.order, explorer.choices)
        raised.add_note(f"explore: seed {seed} has found this order of arrivals:\n{order}")
        raise
    if not explorer.order:
        pytest.fail("explore: no run of the test has branches, so it has one order", pytrace=False)
    return result


def _crash_points(item: pytest.Item, whole: FaultyStore) -> list[CrashPoint]:
    """Return where to crash a test, or fail it if it has no such place."""
    from effectflow.testing.crash import crash_points, crash_points_at

    points = crash_points(whole)
    if not points:
        pytest.fail(
            "crash_everywhere: the test starts no run with the fixture `checkpoints` of effectflow, so "
            "there is nothing to crash",
            pytrace=False,
        )
    marker = item.get_closest_marker(_MARKER)
    at = None if marker is None else marker.kwargs.get("at")
    if at is None:
        return points
    import asyncio

    from effectflow.checkpoint import CorruptCheckpoint

    # The event loop of the test is not running now, and a plugin may need it to stay the current one.
    with closing(asyncio.new_event_loop()) as loop:
        try:
            return loop.run_until_complete(crash_points_at(whole, at))
        except (ValueError, CorruptCheckpoint) as error:
            pytest.fail(f"crash_everywhere: {error}", pytrace=False)


def _crashed(
    item: pytest.Item, store: FaultyStore, point: Fault
) -> Generator[None, object, object]:
    with store.life():
        item.runtest()
    # The whole run may have taken longer, and have saved one by one what was saved together this time.
    store.disarm()
    calls = len(store.calls)
    begun = {call.run_id for call in store.calls if call.operation == "append"}
    result = yield
    # A resumed run does not look again at complete runs that its steps have driven.
    forgotten = begun - store.completed - {call.run_id for call in store.calls[calls:]}
    if forgotten:
        pytest.fail(
            f"crash_everywhere: crashed {point}, and run {forgotten.pop()!r} was not continued. "
            "Pass a run_id to `start` that is the same each time",
            pytrace=False,
        )
    return result
