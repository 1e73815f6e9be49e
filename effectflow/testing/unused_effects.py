"""Finds effects of steps and workflows that a test creates and never runs.

Such an effect is a bug like a coroutine that is never awaited. It is found when it is garbage: what is
still referenced at the end of the test, by a list of a fixture or a module, may run later.

An effect is used once it is run, or is part of one that is run. To avoid false alarms, an effect also
counts as used once

- a function of another effect refers to it (`a.fallback_to(b)`, `a.and_then(lambda _: b)`);
- a failure, a defect or a cancellation passes, or an operator decides, or a `pytest.raises` block ends,
  while it exists: that may be why it is not run.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass
from functools import partial
from os.path import dirname, sep
from types import CellType, FunctionType, MethodType
from typing import Any

import pytest

import effectflow
from effectflow.effects import Effect, nodes
from effectflow.testing.watching import Watch
from effectflow.workflows.workflow import Workflow

_LIBRARY = dirname(effectflow.__file__) + sep
_MOST_OBJECTS = 10_000
"""How many objects are searched for effects."""

_SEARCHED = (tuple, list, dict, set, frozenset, partial, CellType, MethodType, Effect)


@dataclass(frozen=True, eq=False)
class CreatedEffect:
    """An effect that was created.

    Attributes:
        name: the step, or the method of a workflow.
        file, line: the code that created it.
        key: identifies it while it exists.
    """

    name: str
    file: str
    line: int
    key: int


class _Performing:
    """The function of a `Perform` node. A call uses the effects that the node is made of."""

    def __init__(
        self, f: Callable[..., Any], parts: Iterable[CreatedEffect], watch: UnusedEffects
    ) -> None:
        self.f = f
        self.parts = [*parts]
        self._watch = watch

    def __call__(self, env: Any, scope: Any) -> Any:
        self._watch.mark_used(self.parts)
        return self.f(env, scope)

    def __reduce__(self) -> tuple[Any, ...]:
        # An effect that travels to another process leaves this behind.
        return nodes.itself, (self.f,)


class UnusedEffects(Watch):
    """Takes note of the effects that are created, and of those that are used."""

    def __init__(self) -> None:
        super().__init__()
        self._never_run: list[CreatedEffect] = []
        self._pending: dict[int, tuple[CreatedEffect, weakref.ref[Any]]] = {}

    def never_run(self) -> list[CreatedEffect]:
        """Return the effects that cannot be run any more, and never were."""
        if self._pending:
            # The frame of a test may be part of a cycle: `pytest.raises(...) as caught` is enough.
            gc.collect()
        return self._never_run

    def mark_used(self, parts: Iterable[CreatedEffect]) -> None:
        """Take note that these effects are used."""
        for part in parts:
            if self._pending.get(part.key, (None,))[0] is part:
                del self._pending[part.key]

    def __enter__(self) -> UnusedEffects:
        super().__enter__()
        self.around(nodes.Step, "__init__", self._creating_step)
        self.around(Workflow, "_durably", self._creating_run)
        # Older releases of pytest do not have it.
        raises: Any = getattr(pytest, "RaisesExc", None)
        if raises is not None:
            self.before(raises, "__exit__", self._forget)
        return self

    def replace_functions(self) -> None:
        from effectflow.checkpoint.flow import DurableFlow
        from effectflow.effects import interpreter
        from effectflow.effects.operators import Operator
        from effectflow.effects.scope import PLAIN

        self.around(nodes.Perform, "__init__", self._creating_perform)
        for node in _WITH_FUNCTIONS:
            self.before(node, "__init__", self._use_all_but_source)
        for node in _WITHOUT_SOURCE:
            self.before(node, "__init__", self._use_all)
        for flow in (type(PLAIN), DurableFlow):
            self.before(flow, "execute", self._use_step)
        for name in ("run", "__iter__"):
            self.before(Effect, name, self._use_effect)
        self.around(Effect, "run_or_raise", self._running)
        for name in ("_unwind", "_throw_failure", "declares"):
            self.before(interpreter, name, self._forget)
        self.before(Operator, "decide", self._forget)

    def _creating_step(self, create: Callable[..., None]) -> Callable[..., None]:
        def creating(step: nodes.Step, *args: Any, **kwargs: Any) -> None:
            create(step, *args, **kwargs)
            self._add(step, f"step {step.definition.name!r}")

        return creating

    def _creating_run(self, create: Callable[..., Any]) -> Callable[..., Any]:
        def creating(workflow: Any, perform: Any, shown: Any) -> Any:
            effect: Any = create(workflow, perform, shown)
            self.begin()
            effect.f = _Performing(effect.f, (), self)
            effect.f.parts += [self._add(effect.f, f"{workflow.name}.{shown[0]}")]
            return effect

        return creating

    def _creating_perform(self, create: Callable[..., None]) -> Callable[..., None]:
        def creating(effect: nodes.Perform, f: Any, shown: tuple[Any, ...] = ()) -> None:
            parts = self._parts_of((f, shown))
            create(effect, _Performing(f, parts, self) if parts else f, shown)

        return creating

    def _running(self, run: Callable[..., Any]) -> Callable[..., Any]:
        async def running(effect: Any, *args: Any, **kwargs: Any) -> Any:
            self._use(effect)
            try:
                return await run(effect, *args, **kwargs)
            except BaseException:
                self._forget()
                raise

        return running

    def _add(self, effect: object, name: str) -> CreatedEffect:
        key = id(effect)
        created = CreatedEffect(name, *_caller(), key)

        def die(dead: weakref.ref[Any]) -> None:
            if self._pending.get(key) == (created, dead):
                del self._pending[key]
                self._never_run.append(created)

        self._pending[key] = created, weakref.ref(effect, die)
        return created

    def _forget(self, *_: Any, **__: Any) -> None:
        self._pending.clear()

    def _use(self, whole: object) -> None:
        self.mark_used(self._parts_of(whole))

    def _use_effect(self, effect: object, *_: Any, **__: Any) -> None:
        self._use(effect)

    def _use_step(self, _flow: object, step: object, *_: Any, **__: Any) -> None:
        self._use(step)

    def _use_all(self, _effect: object, *parts: Any, **more: Any) -> None:
        self._use((parts, more))

    def _use_all_but_source(self, _effect: object, _source: object, *functions: Any) -> None:
        self._use(functions)

    def _parts_of(self, whole: object) -> list[CreatedEffect]:
        """Return the effects that are not used yet and are part of something."""
        found: list[CreatedEffect] = []
        if not self._pending:
            return found
        left = [whole]
        seen: set[int] = set()
        while left:
            part: Any = left.pop()
            if id(part) in seen:
                continue
            seen.add(id(part))
            if len(seen) > _MOST_OBJECTS:
                self._forget()
                break
            created, alive = self._pending.get(id(part), (None, None))
            if created is not None and alive is not None and alive() is part:
                found.append(created)
            if isinstance(part, FunctionType):
                left += [part.__closure__, part.__defaults__, part.__kwdefaults__]
            elif isinstance(part, _Performing):
                left.append(part.f)
                found += part.parts
            elif isinstance(part, _SEARCHED) or (is_dataclass(part) and not isinstance(part, type)):
                left += gc.get_referents(part)
        return found


_WITH_FUNCTIONS = (
    nodes.AndThen,
    nodes.OrElse,
    nodes.Rescue,
    nodes.TapErr,
    nodes.Map,
    nodes.MapErr,
    nodes.Local,
    nodes.Bracket,
)
"""Nodes that run their source first. So that counts as used only when it is run."""

_WITHOUT_SOURCE = (
    nodes.Pure,
    nodes.Fail,
    nodes.FromFn,
    nodes.FromAsync,
    nodes.FromGenerator,
    nodes.Suspend,
    # A resume may know how the source ended, and then does not run it.
    nodes.OnExit,
)


def _caller() -> tuple[str, int]:
    """Return file and line of the call that led into the library."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
