"""The keys of a store's entries, from files: never from an argument, which other users could see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from effectflow.checkpoint import Encryption, Seal
from effectflow.cli.loading import BadUse

__all__ = ["EncryptionKeysOption", "KeyFileOption", "Keys", "read_keys"]

KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar="EFFECTFLOW_KEY_FILE",
        help="A file with the key that entries are signed with.",
        rich_help_panel="Keys",
    ),
]
EncryptionKeysOption = Annotated[
    Path | None,
    typer.Option(
        "--encryption-keys",
        envvar="EFFECTFLOW_ENCRYPTION_KEYS",
        help="A file with a line `ID HEX` for each key; the last one is written with.",
        rich_help_panel="Keys",
    ),
]


@dataclass(frozen=True, slots=True)
class Keys:
    """How entries are written and checked, and the words that give a command the same keys."""

    seal: Seal
    words: tuple[str, ...]


def read_keys(key_file: Path | None, encryption_keys: Path | None) -> Keys:
    """The keys in these files."""
    options = {"--key-file": key_file, "--encryption-keys": encryption_keys}
    words = [word for name, path in options.items() if path for word in (name, str(path))]
    seal = Seal(key=_read_key(key_file), encryption=_read_encryption(encryption_keys))
    return Keys(seal, tuple(words))


def _read_key(path: Path | None) -> bytes | None:
    """The key in a file: all of its bytes; of text, but for a newline at the end."""
    if path is None:
        return None
    key = _read(path)
    if key.isascii():
        key = key.rstrip(b"\r\n")
    if len(key) < 16:
        raise BadUse(f"the key in {path} has {len(key)} bytes, and needs 16 at least")
    return key


def _read_encryption(path: Path | None) -> Encryption | None:
    if path is None:
        return None
    keys: dict[str, bytes] = {}
    try:
        for line in _read(path).decode().splitlines():
            if line.strip():
                name, digits = line.split()
                keys[name] = bytes.fromhex(digits)
        return Encryption(next(reversed(keys)), keys)
    except (ValueError, StopIteration):
        # Without what was found: it may be half a key.
        raise BadUse(
            f"{path} should have a line `ID HEX` for each key, of 16, 24 or 32 bytes"
        ) from None
    except ModuleNotFoundError as error:
        raise BadUse(str(error)) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadUse(f"the key file {path} cannot be read: {error.strerror}") from error
