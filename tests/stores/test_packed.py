"""How the SQL stores pack the records of an append into rows."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from effectflow.checkpoint.store import Record
from effectflow.stores._packed import packed, records_in


def rows_of(bodies: list[bytes], after: int) -> list[tuple[int, float, bytes]]:
    return [(last, 1.0, data) for last, data in packed(bodies, after)]


@given(st.lists(st.binary(max_size=40)), st.integers(0, 5), st.integers(0, 40))
@example([b"", b""], 0, 0)
def test_records_come_back_from_any_number_on(bodies: list[bytes], before: int, after: int) -> None:
    records = [Record(number, 1.0, body) for number, body in enumerate(bodies, before + 1)]

    found = records_in(rows_of(bodies, before), after=after)

    assert found == [record for record in records if record.sequence > after]


def test_a_long_row_gets_no_more_records() -> None:
    bodies = [bytes(20_000), bytes(20_000), b"short", bytes(100_000), b"last"]

    assert [last for last, _ in packed(bodies, 0)] == [2, 4, 5]


@pytest.mark.parametrize("sizes", [b"x", b"-1", b"3 3 3", b"99", b"", b"1" * 5000, b"\xb2"])
def test_a_row_with_damaged_sizes_is_one_record(sizes: bytes) -> None:
    row = sizes + b"onetwo"

    assert [one.sequence for one in records_in([(7, 1.0, row)])] == [7]
    assert [one.sequence for one in records_in([(7, 1.0, sizes + b"\nsix")])] == [7]
