"""Encryption of entries: AES-GCM, with keys that can be rotated."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

__all__ = ["MARK", "Encryption"]

MARK = b"\x01"
"""The first byte of an encrypted entry, with which neither JSON nor CBOR begins here."""

_NONCE = 12


@dataclass(frozen=True, slots=True)
class Encryption:
    """Encrypts entries with AES-GCM. Needs the package `cryptography`: `effectflow[crypto]`.

    The other data about a run stays readable: its id, the workflow's name and version, status and times.

    Attributes:
        current: the id of the key for new entries.
        keys: the keys by id, 16, 24 or 32 bytes each. To rotate a key, add a new one, make it
            `current`, and keep the old one as long as there are runs that were written with it.

    An entry can be decrypted only at its position: after the digest that preceded it when it was
        written.

    Example:
        >>> keys = Encryption("2026", {"2026": bytes(32)})
        >>> keys.decrypt(keys.encrypt(b"secret", after=b"digest"), after=b"digest")
        b'secret'
    """

    current: str
    keys: Mapping[str, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        if find_spec("cryptography") is None:
            raise ModuleNotFoundError(
                "encryption needs the package cryptography: pip install 'effectflow[crypto]'",
                name="cryptography",
            )
        if self.current not in self.keys:
            raise ValueError(
                f"the current key is {self.current!r}, but `keys` has no key of that name"
            )
        for name, key in self.keys.items():
            if len(key) not in (16, 24, 32):
                raise ValueError(f"key {name!r} has {len(key)} bytes; AES takes 16, 24 or 32")
            if len(name.encode()) > 255:
                raise ValueError(f"the id of key {name[:20]!r}... is longer than 255 bytes")

    def encrypt(self, payload: bytes, *, after: bytes) -> bytes:
        """Return the payload encrypted with the current key, for the position after this digest."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        name, nonce = self.current.encode(), os.urandom(_NONCE)
        header = MARK + bytes([len(name)]) + name
        # The header is authenticated as well, so that no other key can be substituted.
        sealed = AESGCM(self.keys[self.current]).encrypt(nonce, payload, header + after)
        return header + nonce + sealed

    def decrypt(self, data: bytes, *, after: bytes) -> bytes:
        """Return the decrypted payload. Raise ValueError if a key is missing or does not fit."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        header = data[: 2 + (data[1] if len(data) > 1 else 0)]
        try:
            name = header[2:].decode()
            key = self.keys[name]
        except (UnicodeDecodeError, KeyError):
            raise ValueError(
                f"it is encrypted with key {header[2:]!r}, which is not among the given ones"
            ) from None
        nonce, sealed = data[len(header) :][:_NONCE], data[len(header) + _NONCE :]
        try:
            return AESGCM(key).decrypt(nonce, sealed, header + after)
        except (InvalidTag, ValueError):
            raise ValueError(
                f"it cannot be decrypted with key {name!r}, or was not written at this place"
            ) from None
