"""Schemas are made when a thread first needs them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import make_dataclass
from threading import Barrier
from typing import Any

import pytest

from effectflow.checkpoint.schema import schema_of

THREADS = 4


@pytest.fixture(autouse=True)
def threads_that_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def read_together(kind: Any, together: Barrier) -> object:
    together.wait()
    return schema_of(kind).read({"count": 1, "name": "cap"})


def test_threads_that_need_a_schema_at_once_all_get_a_complete_one() -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        for number in range(100):
            kind = make_dataclass(f"Kind{number}", [("count", int), ("name", str)], frozen=True)
            together = Barrier(THREADS)
            futures = [threads.submit(read_together, kind, together) for _ in range(THREADS)]
            assert [future.result() for future in futures] == [kind(1, "cap")] * THREADS
