"""Where the runs of a command are: the options that say so, and the store that they name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import typer

from effectflow.checkpoint import Checkpoints, CheckpointStore, Encryption, RunQuery, Seal
from effectflow.checkpoint.journal_reader import all_run_ids
from effectflow.cli.app_loader import app_of_runs, find_app
from effectflow.cli.options import BadUse, check_choice, read_file
from effectflow.cli.suggestions import RunLocation, suggest_for, without_password
from effectflow.service.app import App
from effectflow.stores import open_store

A = TypeVar("A")

_STORE = "sqlite:///effectflow.db"
StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="EFFECTFLOW_STORE",
        help="The store of the runs, such as runs.db or postgresql://host/name.",
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
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        help="What defines the run's workflow: a MODULE, a MODULE:WORKFLOW, or the MODULE:APP of a "
        "service, which also says where its runs are.",
    ),
]
ServiceOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        help="The App that says where its runs are, instead of --store. A module without an App "
        "is accepted, and not used.",
    ),
]


@dataclass(frozen=True, slots=True)
class Access:
    """Where the runs of a command are, and how to read them.

    Attributes:
        checkpoints: their store and its keys.
        app: the value of `--app`: an App, a workflow or a module; None without it.
        is_default: whether neither an option nor an App names the store.
    """

    checkpoints: Checkpoints
    app: str | None = None
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

    def use_run(
        self,
        run_id: str | None,
        latest: bool,
        use: Callable[[CheckpointStore, str], Awaitable[A]],
        *,
        resumable: bool = False,
    ) -> A:
        """Open the store and return `await use(store, run_id)`, for the newest run with `latest`.

        Raise BadUse unless either a run id or `latest` is given.
        """
        check_choice(run_id=run_id, latest=latest)

        async def use_chosen(store: CheckpointStore) -> A:
            if run_id is not None:
                return await use(store, run_id)
            return await use(store, await newest_run(store, resumable=resumable))

        return self.use(use_chosen)

    def use_runs(
        self,
        run_ids: Collection[str],
        latest: bool,
        use: Callable[[CheckpointStore, Iterable[str]], Awaitable[A]],
    ) -> A:
        """Open the store and return `await use(store, run_ids)`, for all runs if none is named.

        Raise BadUse if both run ids and `latest` are given.
        """
        if run_ids:
            check_choice(run_id=run_ids, latest=latest)

        async def use_chosen(store: CheckpointStore) -> A:
            newest = [await newest_run(store)] if latest else ()
            return await use(store, run_ids or newest or await all_run_ids(store))

        return self.use(use_chosen)

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


async def newest_run(store: CheckpointStore, *, resumable: bool = False) -> str:
    """Return the id of the newest run, or of the newest one to resume. Raise BadUse if there is none."""
    for newest in await store.find(RunQuery(resumable=resumable, limit=1)):
        return newest.run_id
    if resumable:
        raise BadUse("no run in this store can be resumed; `effectflow list` shows all runs")
    raise BadUse("this store has no runs")


def with_access(
    make: Callable[..., Access],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter `access` of a command by the options of `make`, which returns it."""
    options = signature(make, eval_str=True).parameters

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:
            access = make(**{name: values.pop(name) for name in options})
            command(access=access, **values)

        parameters: list[Parameter] = []
        for name, parameter in signature(command, eval_str=True).parameters.items():
            parameters += options.values() if name == "access" else [parameter]
        # Typer reads which options a command has.
        run.__signature__ = Signature(  # type: ignore[attr-defined]
            [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
        )
        return run

    return decorate


def to_store(
    ctx: typer.Context,
    store: StoreOption = _STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
) -> Access:
    """Return the access of a command that needs no App."""
    return _access(ctx, None, None, store, key_file, encryption_keys)


def to_code(
    ctx: typer.Context,
    app: AppOption = None,
    store: StoreOption = _STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
) -> Access:
    """Return the access of a command that needs the code of a workflow."""
    found = None if app is None else find_app(app)
    return _access(ctx, app, found, store, key_file, encryption_keys)


def to_runs(
    ctx: typer.Context,
    app: ServiceOption = None,
    store: StoreOption = _STORE,
    key_file: KeyFileOption = None,
    encryption_keys: EncryptionKeysOption = None,
) -> Access:
    """Return the access of a command that needs no code.

    Raise BadUse if `--app` names a module that has an App, but not this App.
    """
    found = None if app is None else app_of_runs(app)
    return _access(ctx, app, found, store, key_file, encryption_keys)


def to_sealed_runs(
    ctx: typer.Context, app: ServiceOption = None, store: StoreOption = _STORE
) -> Access:
    """Return the access of a command that needs neither code nor keys."""
    return to_runs(ctx, app, store)


def _access(
    ctx: typer.Context,
    app: str | None,
    found: App[Any] | None,
    store: str,
    key_file: Path | None,
    encryption_keys: Path | None,
) -> Access:
    """Return the access to the runs of the App that `app` names, or else of the store of the options.

    The commands that this command suggests find the same runs, once the user has added the password of
    the store.

    Raise BadUse for an invalid store or key, and for options of the command line beside an App.
    """
    given = {"store": store, "key_file": key_file, "encryption_keys": encryption_keys}
    sources = {name: ctx.get_parameter_source(name) for name in given}
    origins = {name: source.name for name, source in sources.items() if source is not None}
    if found is not None:
        for name, origin in origins.items():
            # Environment variables do not conflict: they are for commands without an App.
            if origin == "COMMANDLINE":
                raise BadUse(
                    f"the App {app!r} says where its runs are kept: leave out {_option(name)}"
                )
        suggest_for(RunLocation(app=app))
        return Access(found.checkpoints, app)
    checkpoints = Checkpoints(
        _store_at(store),
        key=None if key_file is None else _read_signing_key(key_file),
        encryption=None if encryption_keys is None else _read_encryption(encryption_keys),
    )
    words = [
        word
        for name, origin in origins.items()
        if not origin.startswith("DEFAULT")
        for word in (_option(name), without_password(str(given[name])))
    ]
    suggest_for(RunLocation(tuple(words), module=app))
    return Access(checkpoints, app, is_default=origins["store"].startswith("DEFAULT"))


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
