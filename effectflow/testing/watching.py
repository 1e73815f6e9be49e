"""What the checks of the pytest plugin have in common: they replace functions while a test runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, Self

import pytest

from effectflow.effects import nodes

_entered: list[Watch] = []


class Watch(ABC):
    """Replaces functions of the library, and restores them on exit. Production code pays nothing.

    What drives runs is imported and replaced with the first step or run of the test.
    A test may run tests itself: then only the watch of the inner test takes note.
    """

    def __init__(self) -> None:
        self._patches = pytest.MonkeyPatch()
        self._has_steps = False

    def __enter__(self) -> Self:
        _entered.append(self)
        self.before(nodes.Step, "__init__", lambda *_, **__: self.begin())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._patches.undo()
        _entered.remove(self)

    def begin(self) -> None:
        """Replace what only tests with steps or runs need."""
        if not self._has_steps:
            self._has_steps = True
            self.replace_functions()

    @abstractmethod
    def replace_functions(self) -> None:
        """Replace the functions of `begin`."""

    @property
    def is_innermost(self) -> bool:
        """Whether no other watch of this kind was entered after this one."""
        return next(each for each in reversed(_entered) if type(each) is type(self)) is self

    def before(self, owner: Any, name: str, react: Callable[..., object]) -> None:
        """Call `react` with the arguments of each call of a function, before it."""
        self.around(owner, name, lambda call: _reacting(call, react))

    def around(
        self, owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        """Call `wrap(function)` instead of a function."""
        function = getattr(owner, name)
        wrapped = wrap(function)

        @wraps(function)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            chosen = wrapped if self.is_innermost else function
            return chosen(*args, **kwargs)

        self._patches.setattr(owner, name, replaced)


def _reacting(call: Callable[..., Any], react: Callable[..., object]) -> Callable[..., Any]:
    def reacting(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        react(*args, **kwargs)
        return call(*args, **kwargs)

    return reacting
