"""URLs and secrets of pydantic. This module imports pydantic only for a value that belongs to it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection
from typing import Any

from effectflow.checkpoint.values.exceptions import safe_repr
from effectflow.checkpoint.values.walk import Fault, Kind, Walk, encodable

_URLS = frozenset(
    [
        "Url",
        "MultiHostUrl",
        "AnyUrl",
        "AnyHttpUrl",
        "HttpUrl",
        "FileUrl",
        "FtpUrl",
        "WebsocketUrl",
        "AnyWebsocketUrl",
        "PostgresDsn",
        "CockroachDsn",
        "AmqpDsn",
        "RedisDsn",
        "MongoDsn",
        "KafkaDsn",
        "NatsDsn",
        "MySQLDsn",
        "MariaDBDsn",
        "ClickHouseDsn",
        "SnowflakeDsn",
    ]
)
_SECRETS = frozenset({"SecretStr", "SecretBytes"})


def _class_of_pydantic(name: object, names: Collection[str]) -> Any:
    """Return the class of pydantic that has one of these names. Raises LookupError for another name."""
    if name not in names:
        raise LookupError(f"{safe_repr(name):.100} is not known")
    import pydantic
    import pydantic_core

    found: Any = pydantic_core if name in ("Url", "MultiHostUrl") else pydantic
    return getattr(found, str(name))


def _encode_secret(value: Any, walk: Walk) -> list[Any]:
    clear = value.get_secret_value()
    text = encodable(clear) if isinstance(clear, str) else b64encode(clear).decode()
    try:
        return [value.__class__.__name__, walk.types.hide(text)]
    except ValueError as error:
        raise Fault(str(error)) from None


def _decode_secret(content: Any, walk: Walk) -> Any:
    name, hidden = content
    cls = _class_of_pydantic(name, _SECRETS)
    text = walk.types.reveal(hidden)
    return cls(text if name == "SecretStr" else b64decode(text, validate=True))


URL = Kind(
    "$url",
    lambda value, _: [value.__class__.__name__, str(value)],
    lambda content, _: _class_of_pydantic(content[0], _URLS)(content[1]),
)
SECRET = Kind("$secret", _encode_secret, _decode_secret)


def pydantic_kind(cls: type[Any]) -> Kind | None:
    """Return the kind of the values of a class of pydantic that is not a model, or None."""
    name = cls.__name__
    if not cls.__module__.startswith("pydantic"):
        return None
    if name in _URLS and _class_of_pydantic(name, _URLS) is cls:
        return URL
    return SECRET if name in _SECRETS and _class_of_pydantic(name, _SECRETS) is cls else None
