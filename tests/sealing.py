"""The seal of an entry without a key, as docs/format.md describes it."""

from __future__ import annotations

import hashlib
from base64 import b64encode


def sealed(payload: bytes, previous: bytes) -> tuple[bytes, bytes]:
    """Return the entry with its seal, and its digest, which follows another one."""
    digest = hashlib.sha256(previous + payload).digest()[:16]
    is_text = payload[:1] == b"{"
    return payload + (b"\n" + b64encode(digest)[:22] if is_text else digest) + b"S", digest


def payload_of(body: bytes) -> bytes:
    """Return the entry in JSON without its seal."""
    return body[: body.rindex(b"\n")]
