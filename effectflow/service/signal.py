"""`Signal`: a named value that a workflow waits for, and that others send to its runs."""

from __future__ import annotations

from types import NoneType
from typing import Any, Generic, Never, TypeAlias, TypeVar, overload

from effectflow.checkpoint import Checkpoints, NotSerializable
from effectflow.checkpoint.durable_fiber import DurableFiber
from effectflow.checkpoint.values import (
    KnownTypes,
    Tree,
    check_savable,
    from_tree,
    mismatch_of,
    of_type,
    to_tree,
)
from effectflow.checkpoint.waits import receive
from effectflow.effects import Effect
from effectflow.effects.arguments import check_text
from effectflow.effects.nodes import Perform, show_arguments
from effectflow.effects.scope import Scope

T = TypeVar("T")

# Within the class, mypy resolves `type` to its attribute.
_ClassOf: TypeAlias = type[T]


class Signal(Generic[T]):
    """A named value that a workflow waits for, and that others send to its runs.

    The same object is used on both sides: `yield from approval.wait()` in the workflow, and
    `handle.send(approval, value)` elsewhere.

    Attributes:
        name: the name of the signal. A run distinguishes its signals by their names.
        type: the type of the values.

    Example:
        >>> from effectflow import Do, workflow
        >>> approval = Signal("approval", bool)
        >>> @workflow
        ... def refund(amount: int) -> Do[object, Exception, str]:
        ...     approved = yield from approval.wait()
        ...     return "paid" if approved else "declined"
    """

    name: str
    type: Any

    @overload
    def __init__(self, name: str, type: _ClassOf[T]) -> None: ...
    @overload
    def __init__(self, name: str, type: object) -> None: ...
    def __init__(self, name: str, type: object) -> None:  # noqa: A002, what it is
        """Create a signal.

        Parameters:
            name: the name, which must be the same on both sides.
            type: the type of the values: a class, or any other annotation, which type checkers need to be
                told: `Signal[int | None]("number", int | None)`.
        """
        check_text("the name of a signal", name)
        if not name:
            raise ValueError("a signal needs a name")
        self.name = name
        self.type = NoneType if type is None else type

    def _known(self, checkpoints: Checkpoints) -> KnownTypes:
        """Return the classes of the values. Raises NotSerializable if values cannot be saved."""
        # Not earlier, because a class may have fields of classes that its module defines later.
        known = checkpoints.known(KnownTypes.of(self.type))
        check_savable(self.type, known, path=self._path)
        return known

    @property
    def _path(self) -> str:
        return f"signal {self.name!r}: $"

    @property
    def topic(self) -> str:
        """The topic of its messages in the mailboxes of runs."""
        return f"signal:{self.name}"

    def wait(self) -> Effect[object, Never, T]:
        """Wait durably for the next value that is sent to the run, and yield it.

        Each value is received once, in the order in which they were sent. A value that was sent before
        the wait is received at once. If a worker drives the run, it suspends the run meanwhile, which
        then holds no resources and no memory. `.timeout(seconds)` gives the wait a deadline.

        Outside a durable run, this raises TypeError.
        """

        async def perform(_: object, scope: Scope) -> T:
            fiber = scope.fiber
            if not isinstance(fiber, DurableFiber):
                raise TypeError(
                    f"signal {self.name!r} can be waited for in a durable run only, which others can "
                    "send to: start or submit a workflow"
                )
            known = self._known(fiber.run.checkpoints)
            return await receive(
                fiber, scope, self.topic, self.type, lambda tree: self._decode(tree, known)
            )

        return Perform(perform, (".wait", self))

    def encode(self, value: T, checkpoints: Checkpoints) -> Tree:
        """Return a value in its saved form. Raises NotSerializable, with the path, if it is not valid."""
        known = self._known(checkpoints)
        mismatch = mismatch_of(value, self.type)
        if mismatch is not None:
            raise NotSerializable(f"{self._path}{mismatch[0]}", mismatch[1])
        return to_tree(value, path=self._path, types=known)

    def _decode(self, tree: Tree, types: KnownTypes) -> T:
        value = from_tree(tree, path=self._path, types=types)
        return of_type(value, self.type, path=self._path)

    def __repr__(self) -> str:
        return f"Signal{show_arguments((self.name, self.type))}"
