"""`Checkpoints`: how and where a program stores its runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from effectflow.checkpoint.values.custom import NO_OPTIONS, Codec, ValueOptions, options_of
from effectflow.effects.arguments import check_count, check_type
from effectflow.effects.clock import Duration, in_seconds

if TYPE_CHECKING:
    # Modules that only drive and read runs are imported when a program creates its first Checkpoints.
    from effectflow.checkpoint.entries import Format
    from effectflow.checkpoint.integrity import Encryption, Seal
    from effectflow.checkpoint.observers import Observer
    from effectflow.checkpoint.store import CheckpointStore
    from effectflow.checkpoint.values import KnownTypes

_LINGER = 0.05
"""The seconds that a completed step waits for a later one, to share a commit with it."""


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When entries become durable.

    Entries always become durable when a run begins, on interruption, before an at-most-once step, before
    a run is spawned, on `save_now()`, which builders call, too, and before the result is returned. In
    addition, the first of these rules that applies saves all entries:

    Attributes:
        every_steps: before a step, once this many steps have completed since the last save. With 1, the
            default, a completed step is durable before the next step begins. With None, steps are not
            counted.
        every_seconds: at most this many seconds, or this `timedelta`, after an entry was added.
        on_error: as soon as a step fails.
    """

    every_steps: int | None = 1
    every_seconds: Duration | None = None
    on_error: bool = True

    def __post_init__(self) -> None:
        if self.every_steps is not None:
            check_count("every_steps", self.every_steps, least=1)
        if self.every_seconds is not None and not in_seconds(self.every_seconds) > 0:
            raise ValueError(f"every_seconds must be more than 0, not {self.every_seconds}")

    @property
    def longest_wait(self) -> float | None:
        """The most seconds until an entry is durable; None for no bound."""
        seconds = None if self.every_seconds is None else in_seconds(self.every_seconds)
        return seconds if self.every_steps != 1 else min(_LINGER, seconds or _LINGER)

    def is_due(self, completed: int) -> bool:
        """Return whether to save before a step, after this many completed since the last save."""
        return self.every_steps is not None and (
            self.every_steps == 1 or completed >= self.every_steps
        )


@dataclass(frozen=True)
class Checkpoints:
    """The storage environment: where and how runs are stored.

    Attributes:
        store: the store. One that is not open is opened for each run, and closed afterwards.
        format: the encoding of entries: "json" (readable) or "cbor" (compact).
        policy: when entries become durable.
        key: the secret of the HMAC that signs every entry, ideally 32 random bytes; None for digests,
            which detect damage but not forgery.
        encryption: encrypts every entry; None to write them unencrypted.
        preserve: whether a complete run is kept. If not, it is deleted, and a start that begins after
            that runs it again. A run within another run is always kept, because a resume of the outer
            run needs its output.
        on_save_error: "fail" ends a run whose entries cannot be saved; "warn" logs the error, continues,
            and tries again with the next entry. An `at_most_once` step never runs before its beginning
            is saved.
        observers: receive the events of runs.
        codecs: how the values of your own types are saved.
        lease_seconds: how long (seconds, or a `timedelta`) the lease of a run is valid after its last
            renewal.
        max_block: the seconds, or the `timedelta`, after which an event loop that does not respond counts
            as stuck. The leases of its runs are then not renewed, so that another process can continue
            them.
    """

    store: CheckpointStore
    format: Format = "json"
    policy: CheckpointPolicy = CheckpointPolicy()
    key: bytes | None = field(default=None, repr=False)
    encryption: Encryption | None = None
    preserve: bool = True
    on_save_error: Literal["fail", "warn"] = "fail"
    observers: Sequence[Observer] = ()
    codecs: Sequence[Codec[Any]] = ()
    lease_seconds: Duration = 30.0
    max_block: Duration = 300.0

    def __post_init__(self) -> None:
        if isinstance(self.store, type) or not hasattr(self.store, "claim"):
            raise TypeError(
                "Checkpoints takes a store, such as SqliteStore('runs.db') or open_store('runs.db'), and "
                f"got {self.store!r}"
            )
        check_type(
            self.policy,
            CheckpointPolicy,
            "policy takes a CheckpointPolicy, such as CheckpointPolicy()",
        )
        check_type(self.observers, Iterable, "observers takes a list of observers")
        for observer in self.observers:
            if isinstance(observer, type) or not callable(getattr(observer, "notify", None)):
                raise TypeError(
                    f"observers takes objects with a method `notify(event)`, not {observer!r}"
                )
        if not 0 < self.lease_length < math.inf:
            # The lease is the only sign of life of a process on another host.
            raise ValueError(
                f"lease_seconds must be a finite number of more than 0, not {self.lease_seconds}"
            )
        if not in_seconds(self.max_block) > 0:
            raise ValueError(f"max_block must be more than 0, not {self.max_block}")
        if self.format not in ("json", "cbor"):
            raise ValueError(f'format must be "json" or "cbor", not {self.format!r}')
        if self.on_save_error not in ("fail", "warn"):
            raise ValueError(f'on_save_error must be "fail" or "warn", not {self.on_save_error!r}')
        # Check the keys and the codecs here, not in the middle of a run.
        _ = self.seal, self.value_options

    @cached_property
    def seal(self) -> Seal:
        """Writes and checks entries."""
        from effectflow.checkpoint.integrity import Seal

        return Seal(self.format, self.key, self.encryption)

    @cached_property
    def lease_length(self) -> float:
        """`lease_seconds` as a number of seconds."""
        return in_seconds(self.lease_seconds)

    @cached_property
    def value_options(self) -> ValueOptions:
        """How values are saved."""
        if not self.codecs and self.encryption is None:
            return NO_OPTIONS
        return options_of(self.codecs, self.encryption)

    def known(self, types: KnownTypes) -> KnownTypes:
        """Return these types, and the codecs and the encryption for values."""
        options = self.value_options
        return types if options is NO_OPTIONS else replace(types, options=options)


class HasCheckpoints(Protocol):
    """An environment in which runs can be durable."""

    @property
    def checkpoints(self) -> Checkpoints: ...
