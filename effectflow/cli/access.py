"""Where the runs of a command are: the options that say so, and the store that they name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import typer

from effectflow.checkpoint import Checkpoints, CheckpointStore, Encryption, RunQuery, Seal
from effectflow.checkpoint.journal_reader import all_run_ids
from effectflow.cli.options import BadUse, check_choice, read_file
from effectflow.cli.suggestions import RunLocation, suggest_for, suggested, without_password
from effectflow.stores import open_store

A = TypeVar("A")

_STORE = "sqlite:///effectflow.db"
StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="EFFECTFLOW_STORE",
        help="The store of the runs, such as runs.db or postgresql://host/name; by default that of the "
        "App, if --app names one.",
    ),
]
# Keys are never arguments, because other users can see those.
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
CodeOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        help="What defines the run's workflow: a MODULE, a MODULE:WORKFLOW, or the MODULE:APP of a "
        "service, which also says where its runs are and with which keys.",
    ),
]
ServiceOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        help="The App that says where its runs are, and with which keys. A module without an App is "
        "accepted, and not used.",
    ),
]


def options_of(app_option: Any, *, keys: bool) -> dict[str, tuple[Any, object]]:
    """Return the annotation and the default of each option that says where the runs are, by name."""
    options: dict[str, tuple[Any, object]] = {"app": (app_option, None)} if app_option else {}
    options["store"] = (StoreOption, _STORE)
    if keys:
        options["key_file"] = (KeyFileOption, None)
        options["encryption_keys"] = (EncryptionKeysOption, None)
    return options


@dataclass(frozen=True, slots=True)
class Access:
    """Where the runs of a command are, and how to read them.

    Attributes:
        checkpoints: their store and its keys.
        app: the value of `--app`: an App, a workflow or a module; None without it.
        origin: what names the store: "COMMANDLINE", "ENVIRONMENT", "APP", or "DEFAULT" for nothing.
        as_json: whether the command prints JSON.
    """

    checkpoints: Checkpoints
    app: str | None = None
    origin: str = "APP"
    as_json: bool = False

    @property
    def store(self) -> CheckpointStore:
        """Where the runs are."""
        return self.checkpoints.store

    @property
    def seal(self) -> Seal:
        """Writes and checks entries."""
        return self.checkpoints.seal

    async def chosen(self, run_id: str | None, latest: bool, *, resumable: bool = False) -> str:
        """Return the id of the chosen run: with `latest`, of the newest one, or of the newest to resume.

        Raise BadUse unless either a run id or `latest` is given, and if there is no such run.
        """
        check_choice(run_id=run_id, latest=latest)
        if run_id is not None:
            return run_id
        for newest in await self.store.find(RunQuery(resumable=resumable, limit=1)):
            return newest.run_id
        if resumable:
            every = suggested("list")
            raise BadUse(f"no run in this store can be resumed; `{every}` shows all runs")
        raise BadUse("this store has no runs")

    async def chosen_or_all(self, run_ids: Collection[str], latest: bool) -> Iterable[str]:
        """Return these run ids, or with `latest` the newest one; all of the store without either."""
        if run_ids:
            check_choice(run_id=run_ids, latest=latest)
        newest = [await self.chosen(None, latest)] if latest else ()
        return run_ids or newest or await all_run_ids(self.store)

    def use(self, use: Callable[[CheckpointStore], Awaitable[A]]) -> A:
        """Open the store and return `await use(store)`. Raise BadUse if it does not exist."""
        self.check_store()

        async def main() -> A:
            async with self.store as opened:
                return await use(opened)

        return anyio.run(main)

    def check_store(self) -> None:
        """Raise BadUse if the store is a file or folder that does not exist."""
        path = getattr(self.store, "path", None) or getattr(self.store, "directory", None)
        if isinstance(path, Path) and not path.exists():
            way_out = (
                "name the store of the runs with --store, or their App with --app MODULE:APP"
                if self.origin.startswith("DEFAULT")
                else "`effectflow run`, `effectflow worker` and the program itself create it"
            )
            raise BadUse(f"the store {path} does not exist; {way_out}")


def access_of(
    ctx: typer.Context, app_option: Any, *, app: str | None = None, as_json: bool, **given: Any
) -> Access:
    """Return the access to the runs of the App that `app` names, or else of the store of the options.

    Options of the command line replace the store and the keys of the App. Environment variables do not:
    they are for commands without an App. The commands that this command suggests find the same runs,
    once the user has added the password of the store.

    Raise BadUse for an invalid store or key.
    """
    suggest_for(RunLocation())
    found = None
    if app is not None:
        # Imported late, because most commands need no code of the user.
        from effectflow.cli.app_loader import app_of_runs, find_app

        found = find_app(app) if app_option is CodeOption else app_of_runs(app)
    sources = {name: ctx.get_parameter_source(name) for name in given}
    origins = {name: source.name for name, source in sources.items() if source is not None}
    chosen = [
        name
        for name, origin in origins.items()
        if origin == "COMMANDLINE" or (found is None and not origin.startswith("DEFAULT"))
    ]
    words = [
        word for name in chosen for word in (_option(name), without_password(str(given[name])))
    ]
    if found is None:
        checkpoints = Checkpoints(_store_at(given["store"]))
        suggest_for(RunLocation(tuple(words), module=app))
    else:
        checkpoints = found.checkpoints
        if "store" in chosen:
            checkpoints = replace(checkpoints, store=_store_at(given["store"]))
        suggest_for(RunLocation(tuple(words), app=app))
    if "key_file" in chosen:
        checkpoints = replace(checkpoints, key=_read_signing_key(given["key_file"]))
    if "encryption_keys" in chosen:
        encryption = _read_encryption(given["encryption_keys"])
        checkpoints = replace(checkpoints, encryption=encryption)
    origin = "APP" if found is not None and "store" not in chosen else origins["store"]
    return Access(checkpoints, app, origin, as_json)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


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
