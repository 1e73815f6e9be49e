"""Records as rows of a table: one row for all that an append adds, unless they are long.

A step adds two records, and each row costs a header and an entry in an index. So a row has the number
of its last record, and in its body the sizes of all records but the last, a newline, and the records::

    301 28\\n<301 bytes><28 bytes><the rest>
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from effectflow.checkpoint.store import Record

Row: TypeAlias = tuple[int, bytes]
"""The number of the last record in a row, and the body of the row."""

_LONG = 32 * 1024
"""A row that has this many bytes gets no more records."""


def packed(bodies: Sequence[bytes], after: int) -> list[Row]:
    """Return the rows of records that follow record number `after`.

    Example:
        >>> packed([b"one", b"two", b"three"], 4)
        [(7, b'3 3\\nonetwothree')]
    """
    if bodies and sum(map(len, bodies)) < _LONG:
        return [(after + len(bodies), _joined(bodies))]
    rows: list[Row] = []
    first = size = 0
    for count, body in enumerate(bodies, 1):
        size += len(body)
        if size >= _LONG or count == len(bodies):
            rows.append((after + count, _joined(bodies[first:count])))
            first, size = count, 0
    return rows


def _joined(bodies: Sequence[bytes]) -> bytes:
    sizes = b" ".join([b"%d" % len(body) for body in bodies[:-1]])
    return b"".join((sizes, b"\n", *bodies))


def records_in(rows: Iterable[Sequence[Any]], *, after: int = 0) -> list[Record]:
    """Return the records after number `after` in rows: of each, its number, its time and its body.

    A row whose sizes are damaged is one record. Its seal does not fit.
    """
    records: list[Record] = []
    for last, written_at, data in rows:
        bodies = _parts(bytes(data))
        for number, body in enumerate(bodies, last - len(bodies) + 1):
            if number > after:
                records.append(Record(number, written_at, body))
    return records


def _parts(data: bytes) -> list[bytes]:
    sizes, _, rest = data.partition(b"\n")
    parts: list[bytes] = []
    place = 0
    for size in sizes.split():
        # Python does not convert digits without end.
        end = place + int(size) if size.isdigit() and len(size) < 20 else -1
        if not 0 <= end <= len(rest):
            return [data]
        parts.append(rest[place:end])
        place = end
    return [*parts, rest[place:]]
