"""The storage environment that a user injects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    # What only drives and reads runs is imported when a program makes its first Checkpoints.
    from effectflow.checkpoint.encryption import Encryption
    from effectflow.checkpoint.entry_format import Format
    from effectflow.checkpoint.integrity import Seal
    from effectflow.checkpoint.observers import Observer
    from effectflow.checkpoint.store import CheckpointStore

__all__ = ["CheckpointPolicy", "Checkpoints", "HasCheckpoints"]

_LINGER = 0.05
"""Seconds that a completed step waits for a later one to share its commit with."""


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When entries are made durable.

    Always when a run begins, on interruption, before a step that runs at most once, and at the end.
    Besides, whichever comes first:

    Attributes:
        every_steps: before a step starts, once so many have completed since the last time. With 1,
            the default, whatever completed is durable before the next step starts. With None, steps
            are not counted.
        every_seconds: at the latest so many seconds after an entry was added.
        on_error: as soon as a step fails.
    """

    every_steps: int | None = 1
    every_seconds: float | None = None
    on_error: bool = True

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise ValueError(f"every_steps must be 1 or more, or None, not {self.every_steps}")
        if self.every_seconds is not None and not self.every_seconds > 0:
            raise ValueError(f"every_seconds must be more than 0, not {self.every_seconds}")

    @property
    def longest_wait(self) -> float | None:
        """Seconds that an entry waits at most until it is made durable; None for no bound."""
        if self.every_steps != 1:
            return self.every_seconds
        return min(_LINGER, self.every_seconds or _LINGER)

    def is_due(self, completed: int) -> bool:
        """Whether to save before a step, so many having completed since the last time."""
        return self.every_steps is not None and (
            self.every_steps == 1 or completed >= self.every_steps
        )


@dataclass(frozen=True)
class Checkpoints:
    """The storage environment: where runs are kept, and how.

    Attributes:
        store: where.
        format: how entries are written: "json" (readable) or "cbor" (compact).
        policy: when entries are made durable.
        key: the secret of the HMAC that signs every entry, at best 32 random bytes; None for digests
            that find damage but no forger.
        encryption: encrypts every entry; None to write them as they are.
        history: how many copies of earlier checkpoints are kept of each run, to fall back on, by a store
            that writes its newest one over again (`KeepsHistory`). The others only ever append.
        preserve: whether a run is kept in the store once it is complete. If not, it is deleted then,
            and starting it again runs it again. A run that was started or resumed within another run
            is kept all the same, as a resume of that one asks for its output again.
        on_save_error: "fail" ends a run whose entries cannot be saved; "warn" logs it, goes on, and
            tries again with the next entry.
        observers: who is told.
        lease_seconds: how long a run stays claimed after its process was last heard of.
    """

    store: CheckpointStore
    format: Format = "json"
    policy: CheckpointPolicy = CheckpointPolicy()
    key: bytes | None = field(default=None, repr=False)
    encryption: Encryption | None = None
    history: int = 10
    preserve: bool = True
    on_save_error: Literal["fail", "warn"] = "fail"
    observers: Sequence[Observer] = ()
    lease_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.history < 0:
            raise ValueError(f"history must be 0 or more, not {self.history}")
        if not 0 < self.lease_seconds < math.inf:
            # Of a process that died on another host the lease is all that is known.
            raise ValueError(
                f"lease_seconds must be a finite number of more than 0, not {self.lease_seconds}"
            )
        if self.format not in ("json", "cbor"):
            raise ValueError(f'format must be "json" or "cbor", not {self.format!r}')
        if self.on_save_error not in ("fail", "warn"):
            raise ValueError(f'on_save_error must be "fail" or "warn", not {self.on_save_error!r}')
        # Checks the key, here rather than in the middle of a run.
        _ = self.seal

    @cached_property
    def seal(self) -> Seal:
        """How entries are written and checked."""
        from effectflow.checkpoint.integrity import Seal

        return Seal(self.format, self.key, self.encryption)


class HasCheckpoints(Protocol):
    """An environment in which runs can be durable."""

    @property
    def checkpoints(self) -> Checkpoints: ...
