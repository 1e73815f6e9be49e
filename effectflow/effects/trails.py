"""Failures and their trails: the contexts that they crossed, shown as notes (PEP 678) on exceptions."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import CodeType, TracebackType
from typing import Any, Generic, Self, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

logger = logging.getLogger(__name__)


class TypedFailure:
    """The result of the interpreter, instead of a value, for a typed failure.

    Attributes:
        error: the error.
        trail: the contexts that the failure crossed, from inner to outer.
        parts: the failures whose errors the error lists, each with its own trail.
    """

    __slots__ = ("error", "parts", "trail")

    def __init__(
        self, error: object, trail: tuple[str, ...] = (), parts: tuple[TypedFailure, ...] = ()
    ) -> None:
        self.error = error
        self.trail = trail
        self.parts = parts

    def after(self, *lines: str) -> TypedFailure:
        """Return the failure with more lines in its trail."""
        parts = tuple([part.after(*lines) for part in self.parts])
        return TypedFailure(self.error, (*self.trail, *lines), parts)

    def find(self, error: object) -> TypedFailure | None:
        """Return this failure, or the part of it, that has this error; None if neither does."""
        if self.error is error:
            return self
        return next(filter(None, (part.find(error) for part in self.parts)), None)

    def with_parts(self) -> Iterator[TypedFailure]:
        """Return this failure and all of its parts, also those of its parts."""
        yield self
        for part in self.parts:
            yield from part.with_parts()

    def mapped(self, error: object) -> TypedFailure:
        """Return the failure with another error. If a part has that error, only its trail is kept."""
        part = self.find(error) if self.parts else None
        return part or TypedFailure(error, self.trail)


def joined(failures: Sequence[TypedFailure]) -> TypedFailure:
    """Return one failure with the errors and the trails of many. Each error shows its own trail."""
    trail = dict.fromkeys(part for failed in failures for part in failed.trail)
    errors = [show_trail(failed.error, failed.trail) for failed in failures]
    return TypedFailure(errors, tuple(trail), tuple(failures))


def refuse_failure(what: str, outcome: object) -> None:
    """Raise TypeError if a listener has failed. That is a bug, because its type excludes failures."""
    if isinstance(outcome, TypedFailure):
        error = outcome.error
        raise TypeError(
            f"{what} failed with {error!r}, and it must not fail: handle the error inside it, "
            "for instance with .fallback(None)"
        ) from (error if isinstance(error, BaseException) else None)


class Suppressed(str):
    """The line of a trail that reports a failed finalizer.

    Attributes:
        error: its error or its defect.
        is_defect: whether it was a defect.
    """

    __slots__ = ("error", "is_defect")

    PREFIX = "and a finalizer failed: "

    error: object
    is_defect: bool

    def __new__(cls, error: object, *, is_defect: bool) -> Self:
        return cls.read(f"{cls.PREFIX}{error!r}", error, is_defect=is_defect)

    @classmethod
    def read(cls, text: str, error: object, *, is_defect: bool) -> Self:
        """Return the line with this text, which an earlier life has made of the error."""
        line = super().__new__(cls, text)
        line.error = error
        line.is_defect = is_defect
        return line

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Suppressed.read, is_defect=self.is_defect), (str(self), self.error)


# Effects that run many times may fail with the same error object. So we remember which notes (PEP 678)
# are ours, and remove them when the error is used again.
OUR_NOTES = "_effectflow_notes"


def add_note(error: BaseException, note: str) -> None:
    """Add a note and remember that we added it. A frozen exception gets none."""
    # A frozen dataclass with slots raises TypeError.
    with suppress(AttributeError, TypeError):
        error.add_note(note)
        vars(error).setdefault(OUR_NOTES, []).append(note)


def our_notes(error: BaseException) -> tuple[str, ...]:
    """Return the notes that we added."""
    return tuple(vars(error).get(OUR_NOTES, ()))


def renew(error: object, notes: tuple[str, ...] = ()) -> None:
    """Undo what we added to an error when it was used before, and give it these notes.

    Its traceback would otherwise grow with each use, and keep the environment of each run.
    """
    if isinstance(error, BaseException):
        error.with_traceback(_take_before(error))
        for note in vars(error).pop(OUR_NOTES, ()):
            with suppress(AttributeError, ValueError):
                error.__notes__.remove(note)
        for note in notes:
            add_note(error, note)


MARK = "_effectflow_mark"
"""The attribute that stands for an error in `Marked`. Many exceptions cannot be referred to weakly."""


class _Mark:
    """Stands for an error.

    Attributes:
        before: the traceback of the error from before effects used it; missing if it is still all of it.
    """

    __slots__ = ("__weakref__", "before")

    before: TracebackType | None

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process is another error, and no traceback can be sent there.
        return _Mark, ()


class Marked(Generic[T]):
    """What is known of errors. It keeps none of them, and forgets each when it is gone."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[_Mark, T] = WeakKeyDictionary()

    def __setitem__(self, error: BaseException, known: T) -> None:
        self._known[vars(error).setdefault(MARK, _Mark())] = known

    def get(self, error: BaseException) -> T | None:
        mark = vars(error).get(MARK)
        return None if mark is None else self._known.get(mark)


raising_code: set[CodeType] = set()
"""The code of the functions that raise the error of an effect."""


def remember_before(error: BaseException) -> None:
    """Remember the traceback that an error had before effects used it, as that becomes another one."""
    mark = vars(error).setdefault(MARK, _Mark())
    if not hasattr(mark, "before"):
        mark.before = _before_use(error.__traceback__)


def _take_before(error: BaseException) -> TracebackType | None:
    """Return the traceback that an error had before effects used it, and forget it."""
    mark: Any = vars(error).get(MARK)
    if not hasattr(mark, "before"):
        return _before_use(error.__traceback__)
    before = mark.before
    del mark.before
    return before


def _before_use(traceback: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback from before an effect raised the error."""
    before = traceback
    while traceback is not None:
        if traceback.tb_frame.f_code in raising_code:
            before = traceback.tb_next
        traceback = traceback.tb_next
    return before


def show_trail(error: T, trail: tuple[str, ...]) -> T:
    """Return the error, with its trail as notes if it is an exception."""
    if trail and isinstance(error, BaseException):
        known = getattr(error, "__notes__", ())
        for message in trail:
            if message not in known:
                add_note(error, str(message))
    return error


def log_hidden(hidden: BaseException | None, message: str, *arguments: object) -> None:
    """Log an exception that another end of an effect hides."""
    logger.error(message, *arguments, exc_info=hidden)
