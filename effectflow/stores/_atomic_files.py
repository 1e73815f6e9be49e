"""Write files that are complete or absent after a crash, and name folders after runs."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

TEMPORARY = ".tmp"
"""The suffix of a file that is being written."""

_SAFE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,119}")
_RESERVED = frozenset({"latest", "con", "prn", "aux", "nul"})
_SHOWN = 80


def folder_name(run_id: str) -> str:
    """Return the name of a run's folder: the id itself if every file system allows it, or an encoding.

    An encoded name starts with `%` and ends with a digest, so no two runs share it, and it never leads
    out of its parent folder.
    """
    if _SAFE.fullmatch(run_id) and run_id.lower().split(".")[0] not in _RESERVED:
        return run_id
    shown = re.sub(r"[^A-Za-z0-9_-]", "_", run_id)[:_SHOWN]
    return f"%{shown}-{hashlib.sha256(run_id.encode()).hexdigest()[:32]}"


class Unsynced(OSError):
    """The file `filename` is in place, but a power loss may remove it again."""


def write_whole(path: Path, data: bytes, *, is_durable: bool = True) -> None:
    """Replace the content of a file atomically. With `is_durable`, no power loss can undo or damage it.

    Raise OSError if nothing was changed, or Unsynced if only the folder could not be synced.
    """
    # Strings, because `Path` is so slow that saves would take measurably longer.
    place = os.fspath(path)
    temporary = place + TEMPORARY
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        os.replace(temporary, place)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if not is_durable:
        return
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise Unsynced(error.errno, error.strerror, str(path)) from error


def keep_copy(path: Path, copy: Path) -> None:
    """Keep the current content of a file under a second name."""
    try:
        copy.hardlink_to(path)
    except OSError:
        # Not every file system has hard links.
        write_whole(copy, path.read_bytes())


def make_folder(folder: Path) -> None:
    """Create a folder, and its missing parents, durably."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
    # Even if the folder exists: its creator may have stopped before it synced.
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, on systems that can do that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def replace_link(link: Path, target: str) -> None:
    """Point a symbolic link to another target, atomically. Do nothing where links are not supported."""
    temporary = link.with_name(link.name + TEMPORARY)
    with suppress(OSError):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)


def remove_link(link: Path, target: str) -> None:
    """Remove a symbolic link if it points to this target."""
    with suppress(OSError):
        if link.readlink() == Path(target):
            link.unlink()
