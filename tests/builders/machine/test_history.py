"""Histories of machines that continue one another share their entries, and never show others' entries."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from effectflow.machines import History, HistoryEntry
from tests.builders.machine.timeline import Timeline

AT = Timeline().now()


def entry(number: int) -> HistoryEntry[int]:
    return HistoryEntry("turn", number, number + 1, AT, 1)


def test_histories_that_continue_the_same_one_are_apart() -> None:
    begun = History([entry(0)])

    first, second = begun.appended(entry(1)), begun.appended(entry(2))
    longer, other = first.appended(entry(3)), second.appended(entry(4))

    assert list(begun) == [entry(0)]
    assert (first[-1], second[-1]) == (entry(1), entry(2))
    assert longer == History([entry(0), entry(1), entry(3)])
    assert other == History([entry(0), entry(2), entry(4)])
    assert (len(begun), len(first), len(longer)) == (1, 2, 3)


def test_a_shorter_history_ends_where_it_ended() -> None:
    shorter = History([entry(0), entry(1)])
    longer = shorter.appended(entry(2))

    assert (shorter[-1], shorter[1:], shorter[-5:]) == (
        entry(1),
        (entry(1),),
        (entry(0), entry(1)),
    )
    for index in (2, -3):
        with pytest.raises(IndexError):
            shorter[index]
    assert shorter != longer
    assert hash(shorter) == hash(History([entry(0), entry(1)]))
    assert pickle.loads(pickle.dumps(shorter)) == shorter
    assert len(pickle.dumps(shorter)) < len(pickle.dumps(longer))


@pytest.fixture
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching_often")
def test_threads_that_continue_the_same_history_are_apart() -> None:
    threads = 4
    together = Barrier(threads)
    shared = [History([entry(0)]) for _ in range(200)]

    def continued(thread: int) -> bool:
        together.wait()
        return all(
            list(begun.appended(entry(thread)).appended(entry(-thread)))
            == [entry(0), entry(thread), entry(-thread)]
            for begun in shared
        )

    with ThreadPoolExecutor(threads) as pool:
        assert all(pool.map(continued, range(1, threads + 1)))
