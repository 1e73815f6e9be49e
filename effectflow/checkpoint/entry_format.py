"""Entries as bytes: JSON or CBOR, distinguished by the first byte. The names on disk are in `_KINDS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, cast

from effectflow.checkpoint import entries
from effectflow.checkpoint.entries import Entry, Started
from effectflow.checkpoint.errors import CorruptCheckpoint, UnsupportedVersion
from effectflow.checkpoint.schema import Schema
from effectflow.checkpoint.values import (
    MalformedValue,
    Tree,
    decode_entry_tree,
    encode_cbor,
    encode_json,
)

__all__ = ["FORMAT", "Format", "decode_entry", "encode_entry", "read_entry", "write_entry"]

Format: TypeAlias = Literal["json", "cbor"]

FORMAT = 1
"""The version of the entry format. A journal says its version in its first entry."""

_KINDS: Mapping[str, type[Entry]] = {
    "started": entries.Started,
    "resumed": entries.Resumed,
    "before_step": entries.BeforeStep,
    "completed": entries.Completed,
    "failed": entries.Failed,
    "interrupted": entries.Interrupted,
    "decided": entries.Decided,
    "branches_ended": entries.BranchesEnded,
    "child_started": entries.ChildStarted,
    "child_ended": entries.ChildEnded,
    "waiting": entries.Waiting,
    "cancel_requested": entries.CancelRequested,
    "finished": entries.Finished,
}
"""Besides these, `signalled`, `published` and `suspended` are reserved."""

_SCHEMAS: Mapping[str, Schema[Any]] = {name: Schema(kind, name) for name, kind in _KINDS.items()}
_WRITERS: Mapping[type[Any], Callable[[Any], dict[str, Tree]]] = {
    kind: _SCHEMAS[name].write for name, kind in _KINDS.items()
}


def encode_entry(entry: Entry, format: Format = "json") -> bytes:
    """Return an entry as bytes."""
    tree = _WRITERS[entry.__class__](entry)
    return encode_json(tree) if format == "json" else encode_cbor(tree)


def decode_entry(data: bytes, run_id: str, sequence: int) -> Entry:
    """Return the entry with this sequence number from bytes.

    Raises CorruptCheckpoint if the bytes are not an entry, and UnsupportedVersion if a newer effectflow
    wrote it.
    """
    try:
        tree: Any = decode_entry_tree(data)
        entry = read_entry(tree)
        if isinstance(entry, Started) and entry.format < 1:
            raise ValueError(f"unknown format {entry.format}")
    except MalformedValue as error:
        raise CorruptCheckpoint(run_id, str(error), sequence=sequence) from error
    except (KeyError, TypeError, ValueError) as error:
        reason = f"this version does not know such an entry ({error!r})"
        raise CorruptCheckpoint(run_id, reason, sequence=sequence) from error
    if isinstance(entry, Started) and entry.format > FORMAT:
        raise UnsupportedVersion(f"run {run_id!r}", entry.format, FORMAT)
    return entry


def write_entry(entry: Entry) -> dict[str, Tree]:
    """Return an entry as plain data."""
    return _WRITERS[entry.__class__](entry)


def read_entry(tree: Mapping[str, Any]) -> Entry:
    """Return the entry in plain data. Raise KeyError, TypeError or ValueError for other data."""
    return cast(Entry, _SCHEMAS[tree["entry"]].read(tree))
