"""Seal entries for a store, and check them when they are read.

Every entry ends with a digest of itself and the previous digest, so an entry that was changed, removed,
moved, or taken from another run is detected. The chain is the one of Haber and Stornetta's
time-stamping. With a key it is an HMAC (RFC 2104), which cannot be forged without the key. Both are
truncated to 128 bits, as in HMAC-SHA-256-128 (RFC 4868): a forger gains nothing from two entries with
the same digest, so this is as hard to forge as 256 bits, and a step is written in less space.

::

    JSON        {...}\\n<22 digits of base64><S or H>
    CBOR        <map><16 bytes><S or H>
    compressed  <02><zlib of one of the above><16 bytes><S or H>
    encrypted   <01><length of key id><key id><12 bytes><ciphertext><16 bytes><S or H>
"""

from __future__ import annotations

import hmac
import math
import os
import re
import zlib
from base64 import b64decode, b64encode
from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from typing import NamedTuple, TypeVar

from anyio import CapacityLimiter

from effectflow.checkpoint.entries import (
    MAX_ENTRY_BYTES,
    Completed,
    Entry,
    Format,
    decode_entry,
    encode_entry,
    encode_without_base64,
)
from effectflow.checkpoint.errors import CorruptCheckpoint, NotSerializable
from effectflow.checkpoint.store import Record
from effectflow.effects.event_loop import PerEventLoop
from effectflow.effects.threads import in_thread

A = TypeVar("A")

_MARK = b"\x01"
"""The first byte of an encrypted entry. Entries in JSON and CBOR begin with other bytes."""

_COMPRESSED = b"\x02"
"""The first byte of a compressed entry, which may be encrypted as a whole."""

LARGE = 8192
"""Entries of at least this size, in bytes, are shortened and compressed."""

LONG = 256 * 1024
"""Entries of more bytes are closed and opened in a thread."""

_SAMPLE = 16_384
"""The number of bytes that show whether a compression is worth its time."""

_NONCE = 12

_SECRET = b"effectflow secret"
"""Distinguishes the encryption of secrets in values from the encryption of entries."""


class _OtherKey(ValueError):
    """An entry is intact, but needs different keys."""


@dataclass(frozen=True, slots=True)
class Encryption:
    """Encrypts entries with AES-GCM. Needs the package `cryptography`: `effectflow[crypto]`.

    The other data about a run stays readable: its id, the workflow's name and version, status and times.

    Attributes:
        current: the id of the key for new entries.
        keys: the keys by id, 16, 24 or 32 bytes each. To rotate a key, add a new one, make it
            `current`, and keep the old one as long as there are runs that were written with it.

    An entry can be decrypted only at its position: after the digest that preceded it when it was written.

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
        header = _MARK + bytes([len(name)]) + name
        # The header is also authenticated, so that no other key can be substituted.
        sealed = AESGCM(self.keys[self.current]).encrypt(nonce, payload, header + after)
        return header + nonce + sealed

    def hide(self, text: str) -> str:
        """Return text encrypted with the current key, as the values of secrets are saved.

        Equal texts give equal results, so that inputs can be compared: the nonce is made from the text,
        with HMAC-SHA-256, as in synthetic initialization vectors (RFC 5297).
        """
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key, clear = self.keys[self.current], text.encode()
        nonce = hmac.digest(key, _SECRET + clear, "sha256")[:_NONCE]
        sealed = nonce + AESGCM(key).encrypt(nonce, clear, _SECRET)
        return f"{b64encode(sealed).decode()}:{self.current}"

    def reveal(self, hidden: str) -> str:
        """Return the text that `hide` encrypted. Raise ValueError if a key is missing or does not fit."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        sealed, _, name = hidden.partition(":")
        if name not in self.keys:
            raise ValueError(f"a secret needs the key {name!r}, which is not among the given ones")
        data = b64decode(sealed, validate=True)
        try:
            clear = AESGCM(self.keys[name]).decrypt(data[:_NONCE], data[_NONCE:], _SECRET)
        except InvalidTag:
            raise ValueError(f"a secret cannot be decrypted with key {name!r}") from None
        return clear.decode()

    def decrypt(self, data: bytes, *, after: bytes) -> bytes:
        """Return the decrypted payload. Raise ValueError if a key is missing or does not fit."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        header = data[: 2 + (data[1] if len(data) > 1 else 0)]
        try:
            name = header[2:].decode()
            key = self.keys[name]
        except (UnicodeDecodeError, KeyError):
            raise _OtherKey(
                f"it is encrypted with key {header[2:]!r}, which is not among the given ones"
            ) from None
        nonce, sealed = data[len(header) :][:_NONCE], data[len(header) + _NONCE :]
        try:
            return AESGCM(key).decrypt(nonce, sealed, header + after)
        except (InvalidTag, ValueError):
            raise ValueError(
                f"it cannot be decrypted with key {name!r}, or was not written at this place"
            ) from None


_PLAIN, _KEYED = b"S", b"H"
_DIGEST = 16
_DIGITS = 22
"""The digits of a digest in base64, without the padding."""

_TRAILER = re.compile(rb"\n[A-Za-z0-9+/]{22}[SH]|(?s:.{16})[SH]")


def first_digest(run_id: str) -> bytes:
    """Return the digest that the first entry of a run follows. It makes entries fit only this run."""
    return sha256(run_id.encode("utf-8", "surrogatepass")).digest()


def digest_in(record: Record) -> bytes:
    """Return the digest at the end of a record, without checking it. The next entry follows it."""
    body = record.body
    if body[:1] != b"{":
        return body[-_DIGEST - 1 : -1]
    try:
        return a2b_base64(body[-_DIGITS - 1 : -1] + b"==")
    except Error:
        return b""


def _check_secret(name: str, given: object, kind: type) -> None:
    if given is not None and not isinstance(given, kind):
        # Without its repr, which may show a key.
        raise TypeError(f"{name} is of type {kind.__name__}, not {type(given).__name__}")


class Draft(NamedTuple):
    """An entry that is encoded, but not sealed: as it was when it was added.

    Attributes:
        entry: the entry. Nothing changes its values any more if it is large.
        payload: the entry as bytes; None if they would have long base64, which nothing changes either.
        size: the size of the payload.
    """

    entry: Entry
    payload: bytes | None
    size: int


@dataclass(frozen=True, slots=True)
class Seal:
    """Writes and checks entries.

    Attributes:
        format: "json" or "cbor", for new entries. Both are read.
        key: the secret of the HMAC, ideally 32 random bytes; None for a plain digest, which detects
            damage but not forgery. With a key, entries without an HMAC are rejected.
        encryption: encrypts entries; None to write them unencrypted. With it, unencrypted entries are
            rejected.
    """

    format: Format = "json"
    key: bytes | None = field(default=None, repr=False)
    encryption: Encryption | None = None

    def __post_init__(self) -> None:
        _check_secret("key", self.key, bytes)
        _check_secret("encryption", self.encryption, Encryption)
        if self.key is not None and len(self.key) < 16:
            raise ValueError("a key needs at least 16 bytes; secrets.token_bytes(32) creates one")

    def draft(self, entry: Entry, *, before: float = math.inf) -> Draft:
        """Return an entry to close now or later. Raises NotSerializable if it is too large.

        `before` is the time of the entry before it, which a step that begins at once does not repeat.
        """
        payload, left_out = encode_without_base64(entry, self.format, LONG, before=before)
        size = len(payload) + left_out
        if size > MAX_ENTRY_BYTES:
            raise NotSerializable(
                f"an entry of {size:,} bytes",
                f"is larger than {MAX_ENTRY_BYTES:,}: store large data elsewhere and save a reference",
            )
        return Draft(entry, None if left_out else payload, size)

    def close(
        self,
        entry: Entry | Draft,
        previous: bytes,
        *,
        shorten: Callable[[Completed], Completed] | None = None,
    ) -> tuple[bytes, bytes]:
        """Return an entry as bytes, and its digest, which follows `previous`.

        A large output is replaced by what `shorten` returns. A large entry is compressed if that makes
        it shorter.
        """
        draft = entry if isinstance(entry, Draft) else self.draft(entry)
        entry, payload, _ = draft
        if payload is None:
            payload = encode_entry(entry, self.format)
        if len(payload) >= LARGE:
            shorter = shorten(entry) if shorten and isinstance(entry, Completed) else entry
            if shorter is not entry:
                payload = encode_entry(shorter, self.format)
            if _is_compressible(payload):
                payload = _COMPRESSED + zlib.compress(payload, 1)
        if self.encryption is not None:
            payload = self.encryption.encrypt(payload, after=previous)
        trailer, digest = self._trailer(payload, previous)
        return payload + trailer, digest

    def open(
        self, record: Record, run_id: str, previous: bytes, *, before: float = 0.0
    ) -> tuple[Entry, bytes]:
        """Return the entry in a record that follows `previous`, and its digest.

        `before` is the time of the entry before it, which a step that begins at once does not repeat.
        Raises CorruptCheckpoint if the bytes differ from the ones that were written there.
        """
        body = record.body
        payload, trailer = _split(body)
        is_as_written = False
        try:
            if len(body) > 2 * MAX_ENTRY_BYTES:
                raise ValueError(f"it has {len(body):,} bytes, more than any entry")
            expected, digest = self._trailer(payload, previous)
            if not hmac.compare_digest(trailer, expected):
                raise self._what_is_wrong(payload, trailer)
            is_as_written = True
            if self.encryption is not None or payload[:1] != b"{":
                payload = _decompressed(self._decrypted(payload, previous))
        except ValueError as error:
            # The keys fit the entries before it, so a wrong digest probably means damage.
            needs_other_key = isinstance(error, _OtherKey)
            is_damaged = not needs_other_key or (record.sequence > 1 and not is_as_written)
            raise CorruptCheckpoint(
                run_id, str(error), sequence=record.sequence, is_damaged=is_damaged
            ) from error
        return decode_entry(payload, run_id, record.sequence, before=before), digest

    def open_unchecked(self, record: Record, run_id: str, previous: bytes) -> Entry:
        """Return the entry in a record whose digest is wrong, which may differ from what was written.

        Raises CorruptCheckpoint if it cannot be read.
        """
        try:
            payload = _decompressed(self._decrypted(_split(record.body)[0], previous))
        except ValueError as error:
            raise CorruptCheckpoint(run_id, str(error), sequence=record.sequence) from error
        return decode_entry(payload, run_id, record.sequence)

    def _what_is_wrong(self, payload: bytes, trailer: bytes) -> ValueError:
        if not payload or not _TRAILER.fullmatch(trailer):
            return ValueError("it is cut off, or was never an entry")
        kind = trailer[-1:]
        if kind == _KEYED and self.key is None:
            return _OtherKey("it is signed: pass its key, Checkpoints(key=...) or --key-file")
        if kind == _PLAIN and self.key is not None:
            return _OtherKey("it is not signed, but a key was given")
        reason = "its digest is wrong: it, or what comes before it, was changed, lost or moved"
        return ValueError(
            reason if self.key is None else f"{reason}, or was signed with another key"
        )

    def _decrypted(self, payload: bytes, previous: bytes) -> bytes:
        is_encrypted = payload[:1] == _MARK
        if self.encryption is None:
            if is_encrypted:
                raise _OtherKey(
                    "it is encrypted: pass its key, Checkpoints(encryption=...) or --encryption-keys"
                )
            return payload
        if not is_encrypted:
            raise _OtherKey("it is not encrypted, although encryption is asked for")
        return self.encryption.decrypt(payload, after=previous)

    def _trailer(self, payload: bytes, previous: bytes) -> tuple[bytes, bytes]:
        """Return what follows a payload: its digest, which follows `previous`. And the digest alone.

        A digest has one form: other digits or blanks are rejected.
        """
        if self.key is None:
            hashed = sha256(previous)
            # A copy of both in one would take longer than this call.
            hashed.update(payload)
            digest, kind = hashed.digest()[:_DIGEST], _PLAIN
        else:
            digest, kind = hmac.digest(self.key, previous + payload, "sha256")[:_DIGEST], _KEYED
        if payload[:1] != b"{":
            return digest + kind, digest
        return b"\n" + b2a_base64(digest, newline=False)[:_DIGITS] + kind, digest


_threads = PerEventLoop(partial(CapacityLimiter, 2))


async def off_loop(work: Callable[[], A], size: int) -> A:
    """Return the result of `work()`, which takes a thread if it closes or opens entries of this size."""
    return await in_thread(work, _threads.get()) if size > LONG else work()


async def open_off_loop(
    seal: Seal, record: Record, run_id: str, previous: bytes, *, before: float = 0.0
) -> tuple[Entry, bytes]:
    """Return what `seal.open` returns. Other tasks run meanwhile if the entry is long."""
    size = len(record.body)
    if record.body[:1] in (_COMPRESSED, _MARK):
        size *= _USUAL_RATIO
    return await off_loop(partial(seal.open, record, run_id, previous, before=before), size)


_USUAL_RATIO = 8
"""How many times as long a compressed or encrypted entry may be, for a guess of its size."""

SHORT = LONG // _USUAL_RATIO
"""An entry of no more bytes in the store is not long, for a guess."""


UNSIGNED = Seal()
"""Writes entries in JSON, without a key and without encryption."""


def _split(body: bytes) -> tuple[bytes, bytes]:
    """Return the payload of an entry, and its trailer."""
    size = _DIGITS + 2 if body[:1] == b"{" else _DIGEST + 1
    return body[:-size], body[-size:]


def _is_compressible(payload: bytes) -> bool:
    """Return whether a sample of a payload becomes much shorter. Base64 of random bytes does not."""
    middle = len(payload) // 2
    sample = payload[middle : middle + _SAMPLE]
    return len(zlib.compress(sample, 1)) < 0.7 * len(sample)


def _decompressed(payload: bytes) -> bytes:
    if payload[:1] != _COMPRESSED:
        return payload
    inflation = zlib.decompressobj()
    try:
        data = inflation.decompress(payload[1:], MAX_ENTRY_BYTES)
    except zlib.error as error:
        raise ValueError(f"it cannot be decompressed: {error}") from None
    if not inflation.eof or inflation.unused_data:
        raise ValueError("it cannot be decompressed: its size is wrong")
    return data
