"""Options of stores in URLs, such as `sqlite:///runs.db?durability=process`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

_FILES: Mapping[str, Callable[[str], object]] = {"lock_timeout": float, "renew_timeout": float}
_SERVERS: Mapping[str, Callable[[str], object]] = {
    "pool_size": int,
    "reconnect_timeout": float,
    "renew_timeout": float,
}

_OPTIONS: Mapping[str, Mapping[str, Callable[[str], object]]] = {
    "file": {"history": int, **_FILES},
    "sqlite": {"durability": str, **_FILES},
    "postgresql": {"schema": str, "statement_timeout": float, **_SERVERS},
    "redis": {"prefix": str, **_SERVERS},
}
"""The options of each kind of store that its URL may have, and what reads them."""


def split_options(kind: str, url: str) -> tuple[str, dict[str, Any]]:
    """Return a URL without the options of the store, and these.

    Other options belong to the driver of a server, and stay in its URL. Raise ValueError for an option
    that a store in files does not have, or of a wrong type. The message has no other part of the URL,
    which may contain a password.
    """
    address, mark, query = url.partition("?")
    if not mark:
        return url, {}
    known, options, others = _OPTIONS[kind], dict[str, Any](), list[tuple[str, str]]()
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in known:
            options[name] = _read(name, value, known[name])
        else:
            others.append((name, value))
    if not others:
        return address, options
    if kind in ("file", "sqlite"):
        raise ValueError(unknown_option(kind, others[0][0]))
    return f"{address}?{urlencode(others)}", options


def _read(name: str, value: str, read: Callable[[str], object]) -> object:
    try:
        return read(value)
    except ValueError:
        expected = "a whole number" if read is int else "a number of seconds"
        raise ValueError(f"the option {name} of a store is {expected}, not {value!r}") from None


def unknown_option(kind: str, name: str) -> str:
    """Return the message about an option that neither a store nor its driver has."""
    return (
        f"the URL of the {kind} store has the unknown option {name!r}; the store has "
        f"{', '.join(sorted(_OPTIONS[kind]))}"
    )
