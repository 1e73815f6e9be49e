"""Files that are there whole or not at all, and folders named after runs."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

__all__ = [
    "TEMPORARY",
    "Unsynced",
    "folder_name",
    "keep_copy",
    "make_folder",
    "remove_link",
    "replace_link",
    "sync_folder",
    "write_whole",
]

TEMPORARY = ".tmp"
"""What the name of a file ends with that is being written."""

_SAFE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,119}")
_RESERVED = frozenset({"latest", "con", "prn", "aux", "nul"})
_KEPT = 80


def folder_name(run_id: str) -> str:
    """The name of a run's folder: the id itself if every file system takes it, or else encoded.

    An encoded name has a `%` in front and a digest at its end, so it is never that of another run,
    and never leads out of the folder that it is in.
    """
    if _SAFE.fullmatch(run_id) and run_id.lower().split(".")[0] not in _RESERVED:
        return run_id
    shown = re.sub(r"[^A-Za-z0-9_-]", "_", run_id)[:_KEPT]
    return f"%{shown}-{hashlib.sha256(run_id.encode()).hexdigest()[:32]}"


class Unsynced(OSError):
    """A file is in its place, and may be gone from it after a loss of power: `filename` says which."""


def write_whole(path: Path, data: bytes) -> None:
    """Put a file in its place at once, durably.

    Raises OSError, and then has changed nothing; or Unsynced, if only its folder could not be synced.
    """
    # As text, since the work of paths shows in the time of a save.
    place = os.fspath(path)
    temporary = place + TEMPORARY
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise Unsynced(error.errno, error.strerror, str(path)) from error


def keep_copy(path: Path, copy: Path) -> None:
    """Keep what is in a file under another name as well, also when the file is replaced."""
    try:
        copy.hardlink_to(path)
    except OSError:
        # Not every file system has hard links.
        write_whole(copy, path.read_bytes())


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, durably."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
    # Also if it was there: whoever made it may have been stopped before this.
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make durable which files a folder has. Systems that cannot do that need not."""
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
    """Make a link point elsewhere, at once. File systems without links go without."""
    temporary = link.with_name(link.name + TEMPORARY)
    with suppress(OSError):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)


def remove_link(link: Path, target: str) -> None:
    """Remove a link if it points there."""
    with suppress(OSError):
        if link.readlink() == Path(target):
            link.unlink()
