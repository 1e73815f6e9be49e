"""Tracebacks of what users wrote: without the frames of this library and of the event loop under it."""

from __future__ import annotations

from collections.abc import Iterator
from os.path import dirname, sep
from types import CodeType, FrameType, TracebackType
from typing import Any, cast

from effectflow.effects.debug import IS_DEBUG
from effectflow.effects.trails import TypedFailure, remember_before, show_trail

_LIBRARY = dirname(dirname(__file__)) + sep

_LOOPS = frozenset({"anyio", "asyncio", "trio", "outcome", "concurrent", "contextlib", "threading"})
"""The packages that call this library, or that it calls, to wait."""

passing_code: set[CodeType] = set()
"""The code of our functions that raise only errors from elsewhere, so they do not say where."""


def hide_frames(raised: BaseException) -> None:
    """Remove the frames of this library from an exception that leaves it, and from its causes.

    The innermost frame stays if it says where the exception was raised. In debug mode (`python -X dev`),
    all frames stay.
    """
    todo: list[BaseException | None] = [] if IS_DEBUG else [raised]
    seen: set[int] = set()
    while todo:
        error = todo.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        remember_before(error)
        error.with_traceback(_shown(error))
        todo += [error.__cause__, error.__context__]
        if isinstance(error, BaseExceptionGroup):
            todo += cast("BaseExceptionGroup[BaseException]", error).exceptions


def shown_failure(failed: TypedFailure) -> Any:
    """Return the error of a failure that leaves this library, with its trail, and without our frames."""
    error = show_trail(failed.error, failed.trail)
    if isinstance(error, BaseException):
        hide_frames(error)
    return error


def passed_through(raised: BaseException, before: TracebackType | None) -> TracebackType | None:
    """Return the traceback that an exception had before, and the frames of users that it passed since."""
    now = raised.__traceback__
    raised.with_traceback(before)
    remember_before(raised)
    passed = [each for each in _frames(now, before) if not _is_ours(each.tb_frame)]
    return _joined(passed, before)


def _shown(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception without the frames to hide."""
    frames = list(_frames(error.__traceback__, None))
    shown: list[TracebackType] = []
    called_by_us = True
    for each in frames:
        if _is_ours(each.tb_frame):
            called_by_us = True
        elif not (called_by_us and _is_of_loop(each.tb_frame)):
            called_by_us = False
            shown.append(each)
    if called_by_us and frames and isinstance(error, Exception):
        shown += [each for each in frames[-1:] if each.tb_frame.f_code not in passing_code]
    return _joined(shown, None)


def _frames(first: TracebackType | None, end: TracebackType | None) -> Iterator[TracebackType]:
    while first is not None and first is not end:
        yield first
        first = first.tb_next


def _joined(frames: list[TracebackType], rest: TracebackType | None) -> TracebackType | None:
    for each in reversed(frames):
        rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_LIBRARY)


def _is_of_loop(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _LOOPS
