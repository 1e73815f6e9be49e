"""`Codec`: how the values of a type of one's own are saved."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, cast

from effectflow.effects.arguments import check_function

T = TypeVar("T")

_TAG = re.compile(r"[a-z][a-z0-9_.-]*")

_AWAIT_IN_A_STEP = "take apart only what the value holds, and await anything else in a step"


@dataclass(frozen=True)
class Codec(Generic[T]):
    """How the values of a class that effectflow does not know are saved, for `Checkpoints(codecs=...)`.

    Its values then can be inputs, arguments, outputs and states, also within other values. Only values
    of exactly this class are meant, not those of subclasses.

    Attributes:
        kind: the class.
        tag: the name of the class in stored data: lower-case letters, digits, `_`, `.` and `-`. It must
            stay the same as long as there are runs with such values.
        encode: returns what a value is made of: anything that can be saved. Pure.
        decode: returns the value that `encode` took apart, given an equal copy of the parts. Pure.

    Raises ValueError for a tag of another form, and for a class whose values can be saved without it;
    TypeError for an async function, and for anything else that is not a class, a text or a function.

    Example:
        >>> from effectflow import Checkpoints, Codec
        >>> from effectflow.stores import MemoryStore
        >>> class Money:
        ...     def __init__(self, cents: int) -> None:
        ...         self.cents = cents
        >>> money = Codec(Money, tag="money", encode=lambda it: it.cents, decode=Money)
        >>> checkpoints = Checkpoints(MemoryStore(), codecs=[money])
    """

    kind: type[T]
    tag: str
    encode: Callable[[T], object]
    decode: Callable[[Any], T]

    def __post_init__(self) -> None:
        # Imported late: the table of types needs the dates and numbers of the standard library.
        from effectflow.checkpoint.values.codec import SAVED_CLASSES

        kind, tag = cast(object, self.kind), cast(object, self.tag)
        if not isinstance(kind, type):
            raise TypeError(f"a Codec saves the values of a class, not {kind!r}")
        for name, function in (("encode", self.encode), ("decode", self.decode)):
            check_function(function, f"`{name}` of the Codec for {kind.__name__}", _AWAIT_IN_A_STEP)
        if not isinstance(tag, str):
            raise TypeError(f"the tag of the Codec for {kind.__name__} is {tag!r}: give it a text")
        if not _TAG.fullmatch(tag):
            raise ValueError(
                f"{tag!r} cannot be the tag of a codec: use lower-case letters, digits, '_', '.' "
                "and '-', and begin with a letter"
            )
        if self.kind in SAVED_CLASSES or issubclass(self.kind, Exception):
            raise ValueError(f"a {self.kind.__name__} is saved without a codec")


class Cipher(Protocol):
    """Encrypts the secrets in values."""

    def hide(self, text: str) -> str:
        """Return text encrypted: equal texts give the same, as long as the key is the same."""
        ...

    def reveal(self, hidden: str) -> str:
        """Return the text that `hide` encrypted. Raise ValueError if that is not possible."""
        ...


@dataclass(frozen=True, eq=False)
class ValueOptions:
    """What `Checkpoints` say about how values are saved.

    Attributes:
        codecs: those for types of one's own.
        cipher: encrypts secrets; None to refuse them.
    """

    codecs: tuple[Codec[Any], ...] = ()
    cipher: Cipher | None = None

    @cached_property
    def by_class(self) -> dict[type, Codec[Any]]:
        return {codec.kind: codec for codec in self.codecs}

    @cached_property
    def by_tag(self) -> dict[str, Codec[Any]]:
        return {codec.tag: codec for codec in self.codecs}


NO_OPTIONS = ValueOptions()


def options_of(codecs: Iterable[Codec[Any]], cipher: Cipher | None) -> ValueOptions:
    """Return the options.

    Raises ValueError if two codecs have one class or one tag, and TypeError for what is not a Codec.
    """
    if isinstance(codecs, Codec):
        raise TypeError("codecs takes a list: write codecs=[codec]")
    given = tuple(codecs)
    for one in cast("tuple[object, ...]", given):
        if not isinstance(one, Codec):
            raise TypeError(
                f"codecs takes Codecs, not {one!r}: write Codec(Money, tag='money', encode=..., "
                "decode=...)"
            )
    options = ValueOptions(given, cipher)
    if not len(given) == len(options.by_class) == len(options.by_tag):
        tags = ", ".join(repr(codec.tag) for codec in given)
        raise ValueError(f"two codecs have one class or one tag: {tags}")
    return options
