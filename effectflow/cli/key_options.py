"""The options that name key files. Keys are never arguments, which other users could see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from effectflow.checkpoint import Encryption, Seal
from effectflow.cli.exits import BadUse

__all__ = ["EncryptionKeysOption", "KeyFileOption", "Keys", "read_keys"]

KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar="EFFECTFLOW_KEY_FILE",
        help="A file with the key that signs entries.",
        rich_help_panel="Keys",
    ),
]
EncryptionKeysOption = Annotated[
    Path | None,
    typer.Option(
        "--encryption-keys",
        envvar="EFFECTFLOW_ENCRYPTION_KEYS",
        help="A file with one line `ID HEX` for each key. New entries use the last key.",
        rich_help_panel="Keys",
    ),
]


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a command.

    Attributes:
        seal: signs, encrypts and checks entries with these keys.
        options: the words that give another command the same keys.
    """

    seal: Seal
    options: tuple[str, ...]


def read_keys(key_file: Path | None, encryption_keys: Path | None) -> Keys:
    """Return the keys in these files. Raise BadUse for a file that holds none."""
    given = {"--key-file": key_file, "--encryption-keys": encryption_keys}
    options = [word for name, path in given.items() if path for word in (name, str(path))]
    seal = Seal(
        key=None if key_file is None else _read_signing_key(key_file),
        encryption=None if encryption_keys is None else _read_encryption(encryption_keys),
    )
    return Keys(seal, tuple(options))


def _read_signing_key(path: Path) -> bytes:
    """Return all bytes of a file, without the newline that ends a text file."""
    key = _read(path)
    if key.isascii():
        key = key.rstrip(b"\r\n")
    if len(key) < 16:
        raise BadUse(f"the key in {path} has {len(key)} bytes; it needs at least 16")
    return key


def _read_encryption(path: Path) -> Encryption:
    keys: dict[str, bytes] = {}
    try:
        for line in _read(path).decode().splitlines():
            if line.strip():
                name, digits = line.split()
                keys[name] = bytes.fromhex(digits)
        return Encryption(next(reversed(keys)), keys)
    except (ValueError, StopIteration):
        # The message must not quote the file, which may hold part of a key.
        raise BadUse(
            f"{path} should have one line `ID HEX` for each key of 16, 24 or 32 bytes"
        ) from None
    except ModuleNotFoundError as error:
        raise BadUse(str(error)) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadUse(f"cannot read the key file {path}: {error.strerror}") from error
