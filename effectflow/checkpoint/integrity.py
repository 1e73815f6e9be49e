"""Seal entries for a store, and check them when they are read.

Every entry ends with a digest of itself and the previous digest, so an entry that was changed, removed,
moved, or taken from another run is detected. The chain is the one of Haber and Stornetta's
time-stamping. With a key it is an HMAC (RFC 2104), which cannot be forged without the key.

::

    JSON        {...}\\nsha256:<64 hex digits>
    CBOR        <map><32 bytes><S or H>
    encrypted   <01><length of key id><key id><12 bytes><ciphertext><32 bytes><S or H>
"""

from __future__ import annotations

import hashlib
import hmac
import re
from binascii import hexlify
from dataclasses import dataclass, field
from typing import cast

from effectflow.checkpoint.encryption import MARK, Encryption
from effectflow.checkpoint.entries import Entry
from effectflow.checkpoint.entry_format import Format, decode_entry, encode_entry
from effectflow.checkpoint.errors import CorruptCheckpoint, NotSerializable
from effectflow.checkpoint.store import Record

__all__ = ["MAX_ENTRY_BYTES", "Seal", "first_digest"]

MAX_ENTRY_BYTES = 64 * 1024 * 1024
"""The maximum size of an entry."""

_PLAIN, _KEYED = b"sha256", b"hmac"
_BINARY_KINDS = {b"S": _PLAIN, b"H": _KEYED}
_DIGEST = 32
_DIGITS = re.compile(rb"[0-9a-f]{64}")


def first_digest(run_id: str) -> bytes:
    """Return the digest that the first entry of a run follows, so that no entry fits another run."""
    return hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).digest()


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
        key = cast(object, self.key)
        if key is not None and (not isinstance(key, bytes) or len(key) < 16):
            raise ValueError("a key needs at least 16 bytes; secrets.token_bytes(32) creates one")

    def close(self, entry: Entry, previous: bytes) -> tuple[bytes, bytes]:
        """Return an entry as bytes, and its digest, which follows `previous`."""
        payload = encode_entry(entry, self.format)
        if len(payload) > MAX_ENTRY_BYTES:
            raise NotSerializable(
                f"an entry of {len(payload):,} bytes",
                f"is larger than {MAX_ENTRY_BYTES:,}: store large data elsewhere and save a reference",
            )
        if self.encryption is not None:
            payload = self.encryption.encrypt(payload, after=previous)
        digest = self._digest(payload, previous)
        return payload + self._trailer(payload, digest), digest

    def open(self, record: Record, run_id: str, previous: bytes) -> tuple[Entry, bytes]:
        """Return the entry in a record that follows `previous`, and its digest.

        Raises CorruptCheckpoint if the bytes differ from the ones that were written there.
        """
        if len(record.body) > 2 * MAX_ENTRY_BYTES:
            size = f"{len(record.body):,} bytes"
            raise _refused(record, run_id, f"it has {size}, more than any entry")
        payload, trailer = _take_apart(record.body)
        digest = self._digest(payload, previous)
        if not hmac.compare_digest(trailer, self._trailer(payload, digest)):
            raise _refused(record, run_id, self._what_is_wrong(payload, trailer))
        payload = self._decrypted(payload, record, run_id, previous)
        return decode_entry(payload, run_id, record.sequence), digest

    def _what_is_wrong(self, payload: bytes, trailer: bytes) -> str:
        kind = _kind_of(trailer)
        if kind is None or not payload:
            return "it is cut off, or was never an entry"
        if kind == _KEYED and self.key is None:
            return "it is signed: pass its key, Checkpoints(key=...) or --key-file"
        if kind == _PLAIN and self.key is not None:
            return "it is not signed, but a key was given"
        reason = "its digest is wrong: it, or what comes before it, was changed, lost or moved"
        return reason if self.key is None else f"{reason}, or was signed with another key"

    def _decrypted(self, payload: bytes, record: Record, run_id: str, previous: bytes) -> bytes:
        is_encrypted = payload[:1] == MARK
        if self.encryption is None:
            if is_encrypted:
                raise _refused(
                    record,
                    run_id,
                    "it is encrypted: pass its key, Checkpoints(encryption=...) or --encryption-keys",
                )
            return payload
        if not is_encrypted:
            raise _refused(record, run_id, "it is not encrypted, although encryption is asked for")
        try:
            return self.encryption.decrypt(payload, after=previous)
        except ValueError as error:
            raise _refused(record, run_id, str(error)) from error

    def _trailer(self, payload: bytes, digest: bytes) -> bytes:
        """Return what follows a payload. A digest has one form, without other case or blanks."""
        if payload[:1] == b"{":
            return (b"\nsha256:" if self.key is None else b"\nhmac:") + hexlify(digest)
        return digest + (b"S" if self.key is None else b"H")

    def _digest(self, payload: bytes, previous: bytes) -> bytes:
        if self.key is None:
            return hashlib.sha256(previous + payload).digest()
        return hmac.digest(self.key, previous + payload, "sha256")


def _take_apart(body: bytes) -> tuple[bytes, bytes]:
    """Return the payload of a record and what follows it."""
    start = body.rfind(b"\n") if body[:1] == b"{" else len(body) - _DIGEST - 1
    return body[: max(start, 0)], body[max(start, 0) :]


def _kind_of(trailer: bytes) -> bytes | None:
    """Return the kind of the digest; None if it is malformed."""
    if len(trailer) == _DIGEST + 1:
        return _BINARY_KINDS.get(trailer[-1:])
    kind, _, digits = trailer[1:].partition(b":")
    is_whole = trailer[:1] == b"\n" and _DIGITS.fullmatch(digits) is not None
    return kind if is_whole and kind in (_PLAIN, _KEYED) else None


def _refused(record: Record, run_id: str, reason: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(run_id, reason, sequence=record.sequence)
