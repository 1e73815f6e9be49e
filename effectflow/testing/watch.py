"""Replace functions of the library for a while, so that production code pays nothing for checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, Self, cast

from effectflow.effects import nodes

_INHERITED: Any = object()


class Watch(ABC):
    """Replaces functions of the library, and restores them on exit.

    The modules that drive runs are imported and patched at the first step or run of the test.
    A test may run tests itself: then only the watch of the inner test is active.
    """

    active: ClassVar[Watch | None] = None
    """Of the watches of a kind, only the one that was entered last takes note."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []
        self._has_steps = False
        self._outer: Watch | None = None

    def __enter__(self) -> Self:
        kind = type(self)
        self._outer, kind.active = kind.active, self
        self.before(nodes.Step, "__init__", lambda _args, _more: self.begin())
        return self

    def __exit__(self, *_: object) -> None:
        while self._replaced:
            owner, name, function = self._replaced.pop()
            if function is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, function)
        type(self).active = self._outer

    def begin(self) -> None:
        """Replace the functions that only tests with steps or runs need."""
        if not self._has_steps:
            self._has_steps = True
            self.replace_functions()

    @abstractmethod
    def replace_functions(self) -> None:
        """Replace the functions of `begin`."""

    def around(
        self, owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        """Call `wrap(function)` instead of a function."""
        function, kind = getattr(owner, name), type(self)
        wrapped = wrap(function)

        @wraps(function)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return (wrapped if kind.active is self else function)(*args, **kwargs)

        own = cast("dict[str, Any]", vars(owner))
        self._replaced.append((owner, name, own.get(name, _INHERITED)))
        setattr(owner, name, replaced)

    def before(self, owner: Any, name: str, react: Callable[[Any, Any], object]) -> None:
        """Call `react` with the tuple and the dict of the arguments of each call, before it."""

        def reacting(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                __tracebackhide__ = True
                react(args, kwargs)
                return function(*args, **kwargs)

            return call

        self.around(owner, name, reacting)
