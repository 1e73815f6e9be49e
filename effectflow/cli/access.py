"""Find the store of a command: the one that its options name, or the one of an App."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio

from effectflow.checkpoint import Checkpoints, CheckpointStore, Encryption, Seal
from effectflow.cli.app_loader import app_of_runs, find_app
from effectflow.cli.options import STORE, BadUse, read_file
from effectflow.cli.suggestions import Place, suggest_for
from effectflow.stores import open_store

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Access:
    """Where the runs of a command are, and how to read them.

    Attributes:
        checkpoints: their store and its keys.
        is_default: whether neither an option nor an App names the store.
    """

    checkpoints: Checkpoints
    is_default: bool = False

    @property
    def seal(self) -> Seal:
        """Writes and checks entries."""
        return self.checkpoints.seal

    def use(self, use: Callable[[CheckpointStore], Awaitable[A]], *, must_exist: bool = True) -> A:
        """Open the store and return `await use(store)`.

        Raise BadUse if the store does not exist and `must_exist` is true.
        """
        if must_exist:
            self._check_store()

        async def main() -> A:
            async with self.checkpoints.store as opened:
                return await use(opened)

        return anyio.run(main)

    def _check_store(self) -> None:
        """Raise BadUse if the store is a file or folder that does not exist."""
        store = self.checkpoints.store
        path = getattr(store, "path", None) or getattr(store, "directory", None)
        if isinstance(path, Path) and not path.exists():
            way_out = (
                "name the store of the runs with --store, or their App with --app MODULE:APP"
                if self.is_default
                else "`effectflow run`, `effectflow worker` and the program itself create it"
            )
            raise BadUse(f"the store {path} does not exist; {way_out}")


def access_to(
    store: str,
    key_file: Path | None = None,
    encryption_keys: Path | None = None,
    *,
    app: str | None = None,
    service: str | None = None,
) -> Access:
    """Return the access to the runs of the App, if one is named, or else of the store of the options.

    The commands that this command suggests find the same runs.

    Raise BadUse for an invalid store or key, and for options of the command line beside an App.

    Parameters:
        app: the MODULE:APP of an App, or something else that defines a workflow.
        service: the same, for a command that needs no code. Raise BadUse if it names a module that has an
            App, but not this App.
    """
    found = None
    if service is not None:
        found = app_of_runs(service)
    elif app is not None:
        found = find_app(app)
    if found is not None:
        for option, value, usual in (
            ("--store", store, (STORE, os.environ.get("EFFECTFLOW_STORE"))),
            ("--key-file", key_file, (None, _path_in("EFFECTFLOW_KEY_FILE"))),
            ("--encryption-keys", encryption_keys, (None, _path_in("EFFECTFLOW_ENCRYPTION_KEYS"))),
        ):
            # Environment variables do not conflict: they are for commands without an App.
            if value not in usual:
                raise BadUse(
                    f"the App {service or app!r} says where its runs are kept: leave out {option}"
                )
        suggest_for(Place(app=service or app))
        return Access(found.checkpoints)
    checkpoints = Checkpoints(
        _store_at(store),
        key=None if key_file is None else _read_signing_key(key_file),
        encryption=None if encryption_keys is None else _read_encryption(encryption_keys),
    )
    given = {
        "--store": None if store == STORE else store,
        "--key-file": key_file,
        "--encryption-keys": encryption_keys,
    }
    words = [word for option, value in given.items() if value for word in (option, str(value))]
    suggest_for(Place(tuple(words), module=app))
    return Access(checkpoints, is_default=store == STORE)


def _path_in(variable: str) -> Path | None:
    text = os.environ.get(variable)
    return None if text is None else Path(text)


def _store_at(url: str) -> CheckpointStore:
    """Return the store at a URL, not yet opened. Raise BadUse if the URL names no store."""
    try:
        return open_store(url)
    except (ValueError, ModuleNotFoundError) as error:
        raise BadUse(str(error)) from error


def _read_signing_key(path: Path) -> bytes:
    """Return all bytes of a file, without the newline that ends a text file."""
    key = read_file(path, f"the key file {path}")
    if key.isascii():
        key = key.rstrip(b"\r\n")
    if len(key) < 16:
        raise BadUse(f"the key in {path} has {len(key)} bytes; it needs at least 16")
    return key


def _read_encryption(path: Path) -> Encryption:
    keys: dict[str, bytes] = {}
    try:
        for line in read_file(path, f"the key file {path}").decode().splitlines():
            if line.strip():
                name, digits = line.split()
                keys[name] = bytes.fromhex(digits)
        return Encryption(next(reversed(keys)), keys)
    except (ValueError, StopIteration):
        # The message must not quote the file, which may have part of a key.
        raise BadUse(
            f"{path} should have one line `ID HEX` for each key of 16, 24 or 32 bytes"
        ) from None
    except ModuleNotFoundError as error:
        raise BadUse(str(error)) from error
