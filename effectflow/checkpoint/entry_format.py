"""Entries as bytes: JSON or CBOR, told apart by their first byte.

The names on disk are part of the format and never change their meaning: see `format_versions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

from effectflow.checkpoint.entries import (
    Arguments,
    BeforeStep,
    Completed,
    Entry,
    ErrorRecord,
    Failed,
    Finished,
    Interrupted,
    Recorded,
    Resumed,
    Started,
)
from effectflow.checkpoint.errors import CorruptCheckpoint, UnsupportedVersion
from effectflow.checkpoint.format_versions import format_version, migrated
from effectflow.checkpoint.shapes import (
    LIST,
    MAP,
    MAP_OR_NULL,
    NOTHING,
    NUMBER,
    TEXT,
    TEXT_OR_NULL,
    VALUE,
    WHOLE,
    YES_OR_NO,
    Shape,
    check_shape,
    check_time,
    texts,
)
from effectflow.checkpoint.store import RunStatus
from effectflow.checkpoint.values import (
    MalformedValue,
    Tree,
    decode_entry_tree,
    encode_cbor,
    encode_json,
)

__all__ = [
    "Format",
    "decode_entry",
    "encode_entry",
    "read_entry",
    "write_entry",
]

Format: TypeAlias = Literal["json", "cbor"]


def encode_entry(entry: Entry, format: Format = "json") -> bytes:
    """An entry as bytes."""
    tree = write_entry(entry)
    return encode_json(tree) if format == "json" else encode_cbor(tree)


def decode_entry(data: bytes, run_id: str, sequence: int, version: int) -> Entry:
    """The entry in bytes that have this place in a run, whose format there has this version.

    Fails with CorruptCheckpoint if there is none, and with UnsupportedVersion if a newer effectflow
    wrote it.
    """
    try:
        tree: Any = decode_entry_tree(data)
        return read_entry(migrated(tree, _version_of(tree, run_id, version)))
    except MalformedValue as error:
        raise CorruptCheckpoint(run_id, str(error), sequence=sequence) from error
    except (KeyError, TypeError, ValueError) as error:
        reason = f"it is no entry that this version knows ({error!r})"
        raise CorruptCheckpoint(run_id, reason, sequence=sequence) from error


def read_entry(tree: Mapping[str, Any]) -> Entry:
    """The entry in plain data. Raises KeyError, TypeError or ValueError if there is none."""
    form = _FORMS[tree["entry"]]
    check_shape(tree, form.required, form.optional)
    check_time(tree["at"])
    return form.read(tree)


def write_entry(entry: Entry) -> Tree:
    """An entry as plain data."""
    match entry:
        case BeforeStep(step, attempt, arguments, at):
            tree: dict[str, Tree] = {
                "entry": "before_step", "step": step, "attempt": attempt, "at": at,
            }  # fmt: skip
            if arguments is not None:
                tree["digest"] = arguments.digest
                tree["arguments"] = arguments.shown
            return tree
        case Completed(step, output, duration, at):
            return {
                "entry": "completed", "step": step, "output": output, "duration": duration, "at": at,
            }  # fmt: skip
        case Recorded(step, value, at, is_failure):
            return {
                "entry": "recorded", "step": step, "value": value, "at": at, "failure": is_failure,
            }  # fmt: skip
        case Failed(step, error, retryable, at):
            return {
                "entry": "failed", "step": step, "error": _write_error(error),
                "retryable": retryable, "at": at,
            }  # fmt: skip
        case Interrupted(step, in_progress, reason, at):
            return {
                "entry": "interrupted", "step": step, "in_progress": in_progress,
                "reason": reason, "at": at,
            }  # fmt: skip
        case Resumed(owner, at, version, steps, structure, format):
            tree = {"entry": "resumed", "owner": owner, "at": at}
            if format is not None:
                tree["format"] = format
            if version is not None:
                tree |= {"version": version, "steps": list(steps), **_structure(structure)}
            return tree
        case Finished(status, output, error, at):
            return {
                "entry": "finished", "status": str(status), "output": output,
                "error": None if error is None else _write_error(error), "at": at,
            }  # fmt: skip
        case Started():
            return {
                "entry": "started", "format": entry.format, "run_id": entry.run_id,
                "workflow": entry.workflow, "kind": entry.kind, "version": entry.version,
                "fingerprint": entry.fingerprint, "steps": list(entry.steps),
                "input": entry.input, "context": entry.context, "at": entry.at,
                **_structure(entry.structure),
            }  # fmt: skip


def _structure(lines: Sequence[str]) -> dict[str, Tree]:
    return {"structure": list(lines)} if lines else {}


def _write_error(error: ErrorRecord) -> Tree:
    return {
        "type": error.type, "message": error.message,
        "value": error.value, "traceback": error.traceback,
    }  # fmt: skip


def _version_of(tree: Mapping[str, Any], run_id: str, version: int) -> int:
    """The version that an entry is in: what it says itself, or else that of those before it."""
    if tree["entry"] not in _SAYING_A_VERSION or "format" not in tree:
        return version
    said = tree["format"]
    if said.__class__ is not int or said < 1:
        raise ValueError(f"format is {said!r}")
    if said > format_version():
        raise UnsupportedVersion(f"run {run_id!r}", said, format_version())
    return said


_SAYING_A_VERSION = ("started", "resumed")


def _read_error(tree: Mapping[str, Any]) -> ErrorRecord:
    check_shape(tree, _ERROR)
    value: Tree = tree["value"]
    if tree["traceback"] is not None and isinstance(value, dict) and "value" in value:
        raise ValueError("the error of a defect is no exception")
    return ErrorRecord(tree["type"], tree["message"], value, tree["traceback"])


def _read_started(tree: Mapping[str, Any]) -> Started:
    return Started(
        run_id=tree["run_id"],
        workflow=tree["workflow"],
        kind=tree["kind"],
        version=tree["version"],
        fingerprint=tree["fingerprint"],
        steps=texts(tree["steps"]),
        input=tree["input"],
        context=tree["context"],
        format=tree["format"],
        at=tree["at"],
        structure=texts(tree.get("structure", ())),
    )


def _read_resumed(tree: Mapping[str, Any]) -> Resumed:
    resumed = Resumed(tree["owner"], tree["at"], format=tree.get("format"))
    if "version" not in tree:
        return resumed
    steps, structure = texts(tree["steps"]), texts(tree.get("structure", ()))
    return replace(resumed, version=tree["version"], steps=steps, structure=structure)


def _read_before_step(tree: Mapping[str, Any]) -> BeforeStep:
    has_arguments = "digest" in tree or "arguments" in tree
    arguments = Arguments(tree["digest"], tree["arguments"]) if has_arguments else None
    return BeforeStep(tree["step"], tree["attempt"], arguments, tree["at"])


def _read_finished(tree: Mapping[str, Any]) -> Finished:
    error = None if tree["error"] is None else _read_error(tree["error"])
    return Finished(RunStatus(tree["status"]), tree["output"], error, tree["at"])


class _Form(NamedTuple):
    """How an entry of one name is read, and what it has on disk."""

    read: Callable[[Mapping[str, Any]], Entry]
    required: Shape
    optional: Shape


def _form(
    read: Callable[[Mapping[str, Any]], Entry], required: Shape, optional: Shape = NOTHING
) -> _Form:
    return _Form(read, {"entry": TEXT, "at": NUMBER, **required}, optional)


_ERROR: Shape = {"type": TEXT, "message": TEXT, "value": VALUE, "traceback": TEXT_OR_NULL}

_FORMS: Mapping[str, _Form] = {
    "started": _form(
        _read_started,
        {
            "format": WHOLE, "run_id": TEXT, "workflow": TEXT, "kind": TEXT,
            "version": TEXT, "fingerprint": TEXT, "steps": LIST,
            "input": VALUE, "context": VALUE,
        },
        {"structure": LIST},
    ),
    "resumed": _form(
        _read_resumed,
        {"owner": TEXT},
        {"version": TEXT, "steps": LIST, "structure": LIST, "format": WHOLE},
    ),
    "before_step": _form(
        _read_before_step,
        {"step": TEXT, "attempt": WHOLE},
        {"digest": TEXT, "arguments": TEXT},
    ),
    "completed": _form(
        lambda tree: Completed(tree["step"], tree["output"], tree["duration"], tree["at"]),
        {"step": TEXT, "output": VALUE, "duration": NUMBER},
    ),
    "recorded": _form(
        lambda tree: Recorded(tree["step"], tree["value"], tree["at"], tree["failure"]),
        {"step": TEXT, "value": VALUE, "failure": YES_OR_NO},
    ),
    "failed": _form(
        lambda tree: Failed(
            tree["step"], _read_error(tree["error"]), tree["retryable"], tree["at"]
        ),
        {"step": TEXT, "error": MAP, "retryable": YES_OR_NO},
    ),
    "interrupted": _form(
        lambda tree: Interrupted(
            tree["step"], tree["in_progress"], tree["reason"], tree["at"]
        ),
        {"step": TEXT_OR_NULL, "in_progress": YES_OR_NO, "reason": TEXT},
    ),
    "finished": _form(
        _read_finished,
        {"status": TEXT, "output": VALUE, "error": MAP_OR_NULL},
    ),
}  # fmt: skip
