"""A trial as text: the program, what happened in each life, the journal, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from effectflow.checkpoint import Entry
from tests.exploration.lives import GIVEN
from tests.exploration.trials import Trial
from tests.exploration.virtual_time import EPOCH

_HIDDEN = {
    "context",
    "fingerprint",
    "arguments",
    "function",
    "module",
    "owner",
    "format",
    "item",
    "traceback",
}


_TIMES = {"at", "until", "retry_at"}


def story_of(trial: Trial) -> str:
    return "\n".join(_lines(trial))


def _lines(trial: Trial) -> Iterator[str]:
    case = trial.case
    yield f"{case.program}"
    if case.cancel_at is not None:
        yield f"cancelled at {case.cancel_at:g} s"
    for plan, lived in trial.story:
        yield f"{plan}  ->  {lived.end}"
        yield f"    steps that acted: {' '.join(lived.work) or 'none'}"
    for run_id, entries in trial.last.journals.entries.items():
        yield f"journal of {run_id!r}:"
        for number, entry in enumerate(entries, 1):
            yield f"    {number:3} {_shown(entry)}"
    for problem in trial.problems:
        yield f"PROBLEM  {problem}"


def code_of(value: Any) -> str:
    """Return data of a case as Python code, without what is as by default."""
    if isinstance(value, tuple):
        parts = [code_of(part) for part in value]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    if not is_dataclass(value):
        return repr(value)
    given = [f for f in fields(value) if getattr(value, f.name) != f.default]
    arguments = ", ".join(f"{f.name}={code_of(getattr(value, f.name))}" for f in given)
    return f"{type(value).__name__}({arguments})"


def _shown(entry: Entry) -> str:
    values: dict[str, Any] = {field.name: getattr(entry, field.name) for field in fields(entry)}
    shown = [
        f"{name}={_short(value) if name not in _TIMES else f'{value - EPOCH.timestamp():g} s'}"
        for name, value in values.items()
        if name not in _HIDDEN and value not in (None, (), "", 0, False, GIVEN)
    ]
    return f"{type(entry).__name__} {' '.join(shown)}"


def _short(value: object) -> str:
    """Return a value as text; of an error only what it says."""
    message = getattr(value, "message", None)
    text = (
        str(message or value) if not isinstance(value, dict) else str(value.get("message", value))
    )
    return text if len(text) <= 60 else f"{text[:60]}..."
