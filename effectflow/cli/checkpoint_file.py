"""`effectflow resume --checkpoint FILE`: the run in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import orjson

from effectflow.checkpoint import (
    Checkpoint,
    CorruptCheckpoint,
    ExportedRun,
    Seal,
    find_run,
    import_run,
    read_exported,
    rebuilt_run,
)
from effectflow.cli.access import Access
from effectflow.cli.options import BadUse, read_file
from effectflow.cli.suggestions import RunLocation, suggest_for
from effectflow.stores import open_store


def adopt(access: Access, path: Path) -> tuple[Access, str]:
    """Return where the run in a file is, and its id. Add it to the store unless the store has it.

    The file is one of these:

    - `checkpoint.json` in the folder of a run of a FileStore. The run stays there.
    - An export with one run.
    - What `Checkpoint.to_json()` or `to_binary()` returned.

    Raise BadUse for any other file, and CorruptCheckpoint for damaged JSON.
    """
    data, real = read_file(path, f"the checkpoint {path}"), path.resolve()
    if real.name == "checkpoint.json" and real.parent.parent.name == "sessions":
        if access.origin == "COMMANDLINE":
            raise BadUse(f"the run in {path} stays in its FileStore: leave out --store")
        url = f"file:{real.parent.parent.parent}"
        store = open_store(url)
        suggest_for(RunLocation(("--store", url), module=access.app, checkpoint=str(path)))
        checkpoints = replace(access.checkpoints, store=store)
        return replace(access, checkpoints=checkpoints), _json(data, path)["run_id"]
    run = _run_in(data, path, access.seal)

    async def add() -> None:
        async with access.store as store:
            # The store may have the run, and may have continued it.
            if await find_run(store, run.run_id) is None:
                await import_run(store, run)

    anyio.run(add)
    return access, run.run_id


def _run_in(data: bytes, path: Path, seal: Seal) -> ExportedRun:
    """Return the run in an export or a checkpoint. Raise BadUse unless it is one run to continue."""
    lines = data.splitlines() or [b""]
    if b'"effectflow_export"' in lines[0][:100]:
        runs = [*read_exported(lines)]
        if len(runs) != 1:
            raise BadUse(f"{path} has {len(runs)} runs: `effectflow import` adds them to a store")
        return runs[0]
    if data[:1] != b"{":
        try:
            checkpoint = Checkpoint.from_binary(data)
        except CorruptCheckpoint as error:
            raise _other_file(path) from error
    elif "digest" in _json(data, path):
        checkpoint = Checkpoint.from_json(data.decode())
    else:
        raise _other_file(path)
    try:
        return rebuilt_run(checkpoint, seal)
    except ValueError as error:
        raise BadUse(str(error)) from error


def _json(data: bytes, path: Path) -> Any:
    try:
        return dict(orjson.loads(data))
    except (TypeError, ValueError) as error:
        raise _other_file(path) from error


def _other_file(path: Path) -> BadUse:
    return BadUse(
        f"{path} is not a checkpoint: give the checkpoint.json of a run in a FileStore, an export of one "
        "run, or what `Checkpoint.to_json()` or `to_binary()` returned"
    )
