"""Summaries and leases as text, for stores that keep them in one place."""

from __future__ import annotations

from typing import TypeVar

import orjson

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.schema import schema_of
from effectflow.checkpoint.store import RunSummary

S = TypeVar("S", RunSummary, Lease)


def to_json(value: RunSummary | Lease) -> str:
    """Return a summary or a lease as text, for `summary_from_json` or `lease_from_json`."""
    return orjson.dumps(schema_of(type(value)).write(value)).decode()


def summary_from_json(text: str | bytes, run_id: str) -> RunSummary:
    """Return the summary of a run from its text. Raise CorruptCheckpoint for another text."""
    return _from_json(RunSummary, text, run_id)


def lease_from_json(text: str | bytes, run_id: str) -> Lease:
    """Return the lease of a run from its text. Raise CorruptCheckpoint for another text."""
    return _from_json(Lease, text, run_id)


def _from_json(kind: type[S], text: str | bytes, run_id: str) -> S:
    try:
        return schema_of(kind).read(dict(orjson.loads(text)))
    except (KeyError, TypeError, ValueError) as error:
        reason = f"what the store keeps about it is not a {kind.__name__}: {error!r}"
        raise CorruptCheckpoint(run_id, reason) from None
