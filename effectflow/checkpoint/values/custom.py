"""`Codec`: how the values of a user's own class are saved."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from effectflow.effects.arguments import check_function, check_type

T = TypeVar("T")

_TAG = re.compile(r"[a-z][a-z0-9_.-]*")

_AWAIT_IN_A_STEP = "take apart only what the value holds, and await anything else in a step"


@dataclass(frozen=True)
class Codec(Generic[T]):
    """How the values of a class that effectflow does not know are saved, for `Checkpoints(codecs=...)`.

    Its values then can be inputs, arguments, outputs and states, also within other values. This applies
    to values of exactly this class, not of subclasses.

    Attributes:
        kind: the class.
        tag: the name of the class in stored data: lower-case letters, digits, `_`, `.` and `-`. It must
            stay the same as long as there are runs with such values.
        encode: returns what a value is made of: anything that can be saved. Pure.
        decode: returns the value that `encode` took apart, given an equal copy of the parts. Pure.

    Raises ValueError for a tag of another form, and for a class whose values can be saved without it;
    TypeError for an async function, and for anything else that is not a class, a text or a function.

    Example:
        >>> from effectflow import Checkpoints
        >>> from effectflow.checkpoint import Codec
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
        # Most programs need no codec.
        from effectflow.checkpoint.values.tags import SAVED_CLASSES

        check_type(self.kind, type, "a Codec saves the values of a class")
        owner = f"the Codec for {self.kind.__name__}"
        for name, function in (("encode", self.encode), ("decode", self.decode)):
            check_function(function, f"`{name}` of {owner}", _AWAIT_IN_A_STEP)
        check_type(self.tag, str, f"the tag of {owner} is text")
        if not _TAG.fullmatch(self.tag):
            raise ValueError(
                f"{self.tag!r} cannot be the tag of a codec: use lower-case letters, digits, '_', '.' "
                "and '-', and begin with a letter"
            )
        if self.kind in SAVED_CLASSES or issubclass(self.kind, Exception):
            raise ValueError(f"a {self.kind.__name__} is saved without a codec")


class Cipher(Protocol):
    """Encrypts the secrets in values."""

    def hide(self, text: str) -> str:
        """Return text encrypted: equal texts give equal results as long as the key is the same."""
        ...

    def reveal(self, hidden: str) -> str:
        """Return the text that `hide` encrypted. Raise ValueError if that is not possible."""
        ...


@dataclass(frozen=True, eq=False)
class ValueOptions:
    """The options of `Checkpoints` for saving values.

    Attributes:
        codecs: the codecs of the user's own classes.
        cipher: encrypts secrets; None to reject them.
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

    Raises ValueError if two codecs have the same class or tag, and TypeError for anything but a Codec.
    """
    expected = (
        "codecs takes a list of Codecs, such as Codec(Money, tag='money', encode=..., decode=...)"
    )
    check_type(codecs, Iterable, expected)
    given = tuple(codecs)
    for one in given:
        check_type(one, Codec, expected)
    options = ValueOptions(given, cipher)
    if not len(given) == len(options.by_class) == len(options.by_tag):
        tags = ", ".join(repr(codec.tag) for codec in given)
        raise ValueError(f"two codecs have the same class or tag: {tags}")
    return options
