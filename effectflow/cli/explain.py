"""`effectflow explain`: why a run is where it is, and the commands that would move it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from textwrap import wrap

from effectflow.checkpoint.checkpoint import iso_time
from effectflow.checkpoint.errors import printable
from effectflow.checkpoint.store import is_service
from effectflow.checkpoint.values import Tree, cut
from effectflow.cli.access import Access, ServiceOption
from effectflow.cli.command import Answer, command
from effectflow.cli.options import ExitCode, LatestOption
from effectflow.cli.render import age, when
from effectflow.cli.suggestions import message_of, suggested
from effectflow.observe.explanation import Explanation, Move, read_explanation
from effectflow.observe.operations import Operation
from effectflow.observe.statuses import status_text
from effectflow.service.pauses import pauses_in

_WIDTH = 80
_MOST_SHOWN = 10
"""The open operations and unknown outcomes that are shown as text."""


@command(ServiceOption, latest=LatestOption)
async def explain(access: Access, run_id: str) -> Answer:
    """Tell why a run is where it is, and print the commands that would move it."""
    now = time.time()
    pauses = await pauses_in(access.store) if is_service(access.store) else ()
    found = await read_explanation(access.checkpoints, run_id, now, pauses)
    code = ExitCode.DONE if found.problem is None else ExitCode.CHECKPOINT_ERROR
    return Answer(_tree(found), _lines(found, now), code=code)


def _lines(found: Explanation, now: float) -> Iterable[str]:
    shown = status_text(found.status, is_held=found.is_held)
    since = f"since {when(found.since)} ({age(now - found.since)})"
    yield from _wrapped(f"{found.run_id} of {found.workflow}: {shown}, {since}")
    yield from _wrapped(found.reason)
    if found.problem is not None:
        yield from _row("damage", message_of(found.problem))
    if found.error:
        yield from _row("error", cut(found.error, 500))
    if found.failing:
        yield from _row("step", found.failing)
    if found.due_at is not None and found.due_at > now:
        yield from _row("due at", when(found.due_at))
    if found.owner and not found.is_held:
        yield from _row("last owner", found.owner)
    for one in found.open[:_MOST_SHOWN]:
        yield from _row(
            one.state, f"{one.path}{operation_text(one)}, began {age(now - one.newest.began)}"
        )
    yield from _more(len(found.open))
    for one in found.unknown[:_MOST_SHOWN]:
        yield from _row(
            "unknown",
            f"step {one.step} may or may not have happened; it has used the idempotency key "
            f"{one.idempotency_key}",
        )
    yield from _more(len(found.unknown))
    if found.dead_letters:
        yield from _row("dead", f"{found.dead_letters} items were set aside")
    if found.moves:
        yield ""
    for move in found.moves:
        # Not wrapped, because someone copies it.
        yield f"  {_command(move)}"
        yield f"      {move.effect}"


def operation_text(one: Operation) -> str:
    """Return what an open operation waits for, its attempt and its last error, as text after its path."""
    parts = [f" for {one.what}" if one.what else ""]
    if one.kind == "step" and len(one.attempts) > 1:
        parts.append(f", attempt {len(one.attempts)}")
    if one.until is not None:
        parts.append(f", until {when(one.until)}")
    if one.state == "retrying" and one.newest.error is not None:
        parts.append(f", after {one.newest.error.type}: {cut(one.newest.error.message, 60)}")
    return "".join(parts)


def _more(count: int) -> Iterable[str]:
    if count > _MOST_SHOWN:
        yield from _row("", f"and {count - _MOST_SHOWN} more")


def _row(name: str, text: str) -> Iterable[str]:
    """Yield a named text in lines that fit the width, if its words do."""
    first, *others = wrap(printable(text), _WIDTH - 13, break_long_words=False) or [""]
    yield f"{name:<11}  {first}"
    yield from (f"{'':<11}  {line}" for line in others)


def _wrapped(text: str) -> Iterable[str]:
    return wrap(printable(text), _WIDTH, break_long_words=False)


def _command(move: Move) -> str:
    return suggested(*move.words, module=move.module or None)


def _tree(found: Explanation) -> dict[str, Tree]:
    return {
        "run_id": found.run_id,
        "workflow": found.workflow,
        "status": status_text(found.status, is_held=found.is_held),
        "reason": found.reason,
        "since": iso_time(found.since),
        "owner": found.owner if found.is_held else None,
        "last_owner": found.owner or None,
        "due_at": iso_time(found.due_at),
        "due": found.is_due,
        "open": [operation_tree(one) for one in found.open],
        "failing_step": found.failing or None,
        "error": found.error or None,
        "unknown": [
            {"step": one.step, "idempotency_key": one.idempotency_key} for one in found.unknown
        ],
        "dead_letters": found.dead_letters,
        "problem": None if found.problem is None else message_of(found.problem),
        "moves": [{"command": _command(one), "effect": one.effect} for one in found.moves],
    }


def operation_tree(one: Operation) -> dict[str, Tree]:
    """Return an operation as plain data."""
    return {
        "path": one.path,
        "kind": one.kind,
        "state": one.state,
        "waits_for": one.what or None,
        "until": iso_time(one.until),
        "began_at": iso_time(one.began),
        "attempts": [
            {
                "began_at": iso_time(attempt.began),
                "ended_at": iso_time(attempt.ended),
                "state": attempt.state,
                "error": None
                if attempt.error is None
                else f"{attempt.error.type}: {attempt.error.message}",
            }
            for attempt in one.attempts
        ],
    }
