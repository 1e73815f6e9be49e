"""Paths of steps within a run. This module alone formats and parses them.

::

    charge                      the first step `charge` of the run
    charge#2                    the second one in the same flow
    par_traverse[cap]/quote     a step of the child with the key `cap`
    round#3/map[a/b]/count      a step inside a step inside an operator

A path is a list of segments. A segment has a name, the number of its occurrence in its flow, and, for
the child of a parallel operator, a key. It does not depend on scheduling.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator

ACQUISITION = "acquisition#"
"""The name of an acquisition, as a place where a run may be cancelled. No step can have it."""

_ESCAPES = str.maketrans({"%": "%25", "[": "%5B", "]": "%5D", "\n": "%0A"})

_SURROGATES = re.compile("[\ud800-\udfff]")
"""Lone surrogates, which file names may contain and no encoding can represent."""


def step_path(flow: str, name: str, occurrence: int) -> str:
    """Return the path of an occurrence of `name`, counted from 1, in a flow.

    Example:
        >>> step_path("", "review", 1), step_path("par[0]", "review", 2)
        ('review', 'par[0]/review#2')
    """
    segment = name if occurrence == 1 else f"{name}#{occurrence}"
    return f"{flow}/{segment}" if flow else segment


def child_path(operator: str, key: object) -> str:
    """Return the path of the flow of one branch of a parallel operator.

    Example:
        >>> child_path("par_traverse", "cap"), child_path("par_traverse", "a[0]")
        ('par_traverse[cap]', 'par_traverse[a%5B0%5D]')
    """
    return f"{operator}[{escaped(key)}]"


_NAME = str.maketrans(dict.fromkeys("/[]#", "_"))


def as_name(text: str) -> str:
    """Return a text as the name in a segment of a path.

    Example:
        >>> as_name("orders/eu")
        'orders_eu'
    """
    return text.translate(_NAME)


def escaped(key: object) -> str:
    """Return a key as it is written in paths: text that every encoding can represent."""
    text = str(key).translate(_ESCAPES)
    return text if text.isascii() else _SURROGATES.sub(lambda found: f"%{ord(found[0]):X}", text)


def flow_of(path: str) -> str:
    """Return the sequential flow that a step belongs to: its path without the last segment."""
    if "/" not in path:
        return ""
    # Keys escape brackets, so the last "[" opens the key of the last segment.
    end = path.rfind("[") if path.endswith("]") else len(path)
    return path[: max(path.rfind("/", 0, end), 0)]


def is_within(path: str, outer: str) -> bool:
    """Return whether an operation is within another one: a step, or a branch of an operator.

    Example:
        >>> is_within("order/par[0]/pay", "order"), is_within("orders", "order")
        (True, False)
    """
    return path.startswith((f"{outer}/", f"{outer}["))


def steps_around(path: str, steps: Container[str]) -> Iterator[str]:
    """Yield the steps that an operation is in, the inner ones first.

    Example:
        >>> list(steps_around("order/pay/par[0]/ask", ["order", "order/pay"]))
        ['order/pay', 'order']
    """
    while path := flow_of(path):
        if path in steps:
            yield path


def outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths of these steps that are not inside another one of them.

    Example:
        >>> outermost(["charge", "charge/par[0]/quote", "ship/pack"])
        ['charge', 'ship/pack']
    """
    found = dict.fromkeys(paths)
    return [path for path in found if not any(steps_around(path, found))]


class StepPath(str):
    """A path and its parts. It equals its text.

    Example:
        >>> path = StepPath("charge/par_traverse[a/b]/quote#2")
        >>> path.flow, path.name, path.occurrence, path.key
        ('charge/par_traverse[a/b]', 'quote', 2, None)
        >>> path.segments
        ('charge', 'par_traverse[a/b]', 'quote#2')
        >>> path.flow.operator, path.flow.key
        ('charge/par_traverse', 'a/b')
    """

    __slots__ = ()

    @property
    def flow(self) -> StepPath:
        """The sequential flow that the step belongs to: the path without its last segment."""
        return StepPath(flow_of(self))

    @property
    def segment(self) -> str:
        """The last segment."""
        flow = self.flow
        return self[len(flow) + 1 :] if flow else str(self)

    @property
    def segments(self) -> tuple[str, ...]:
        """The segments, outermost first."""
        found: list[str] = []
        path = self
        while path:
            found.append(path.segment)
            path = path.flow
        return tuple(reversed(found))

    @property
    def operator(self) -> StepPath:
        """The path without the key of its last segment."""
        return StepPath(self[: self.rfind("[")]) if self.endswith("]") else self

    @property
    def key(self) -> str | None:
        """The key of the last segment, or None."""
        # Few programs need it, and it takes long to import.
        from urllib.parse import unquote

        return unquote(self[self.rfind("[") + 1 : -1]) if self.endswith("]") else None

    @property
    def name(self) -> str:
        """The name in the last segment, without occurrence and key."""
        return self.operator.segment.partition("#")[0]

    @property
    def occurrence(self) -> int:
        """The occurrence of this name in its flow, from 1."""
        return int(self.operator.segment.partition("#")[2] or 1)
