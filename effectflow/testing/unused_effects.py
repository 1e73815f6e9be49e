"""Find effects that are never run: in tests, with the pytest plugin, and in development mode."""

from __future__ import annotations

import atexit
import gc
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass
from functools import partial
from os.path import dirname, sep
from types import CellType, CodeType, FunctionType, MethodType, NoneType
from typing import Any, cast

import effectflow
from effectflow.checkpoint.step import StepCall, StepDefinition
from effectflow.checkpoint.values import ValueOptions
from effectflow.effects import Effect, nodes
from effectflow.runs.workflow import Workflow
from effectflow.testing.watch import Watch

_LIBRARY = dirname(effectflow.__file__) + sep
_MOST_OBJECTS = 10_000
"""The number of objects that one search for effects visits at most."""

_SEARCHED = (tuple, list, dict, set, frozenset, partial, CellType, MethodType, Effect, StepCall)
_WITHOUT_PARTS = frozenset(
    {type, NoneType, bool, int, float, str, bytes, CodeType, StepDefinition, ValueOptions}
)
"""The most common classes in a search, which is skipped for them."""


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
    """The function of a `Perform` node. A call marks the effects in the node as used."""

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
        # An effect that is sent to another process leaves this behind.
        return nodes.itself, (self.f,)


class UnusedEffects(Watch):
    """Finds effects of steps and workflows that a test creates and never runs.

    Such an effect is a bug, like a coroutine that is never awaited. It is found when it becomes garbage:
    an effect that a fixture or a module still refers to at the end of the test may run later.

    An effect is used once it is run, or is part of one that is run. To avoid false alarms, an effect
    also counts as used once

    - a function of another effect refers to it (`a.fallback_to(b)`, `a.and_then(lambda _: b)`);
    - a failure, a defect or a cancellation passes, or an operator decides, or a `pytest.raises` block
      ends, while it exists: that may be why it is not run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._never_run: list[CreatedEffect] = []
        self._is_searched: dict[type[Any], bool] = {}
        self._pending: dict[int, tuple[CreatedEffect, weakref.ref[Any]]] = {}

    def never_run(self) -> list[CreatedEffect]:
        """Return the effects that cannot be run any more, and never were."""
        if self._pending:
            # The frame of a test may be part of a cycle: `pytest.raises(...) as caught` is enough.
            gc.collect()
        return self._never_run

    def report(self, created: CreatedEffect) -> None:
        """Take note of an effect that was never run. It is called while the effect is destroyed."""
        self._never_run.append(created)

    def mark_used(self, parts: Iterable[CreatedEffect]) -> None:
        """Mark these effects as used."""
        for part in parts:
            if self._pending.get(part.key, (None,))[0] is part:
                del self._pending[part.key]

    def __enter__(self) -> UnusedEffects:
        super().__enter__()
        self.around(nodes.Step, "__init__", self._creating_step)
        self.around(Workflow, "_durably", self._creating_run)
        # Older releases of pytest do not have it, and programs do not import pytest.
        raises: Any = getattr(sys.modules.get("pytest"), "RaisesExc", None)
        if raises is not None:
            self.before(raises, "__exit__", self.forget)
        return self

    def replace_functions(self) -> None:
        from effectflow.checkpoint.durable_fiber import DurableFiber
        from effectflow.effects import bodies, interpreter
        from effectflow.effects.fiber import PLAIN
        from effectflow.effects.scope import Operator

        self.around(nodes.Perform, "__init__", self._creating_perform)
        for node in _WITH_FUNCTIONS:
            self.before(node, "__init__", lambda args, _: self._use(args[2:]))
        for name in ("map", "and_then"):
            # These create their nodes without `__init__`.
            self.before(Effect, name, lambda args, _: self._use(args[1:]))
        for node in _WITHOUT_SOURCE:
            self.before(node, "__init__", lambda args, more: self._use((args[1:], more)))
        for fiber in (type(PLAIN), DurableFiber):
            self.before(fiber, "execute", lambda args, _: self._use(args[1]))
        for name in ("run", "__iter__", "__await__"):
            self.before(Effect, name, lambda args, _: self._use(args[0]))
        self.around(Effect, "run_or_raise", self._running)
        for name in ("_unwind", "throw_failure", "declares"):
            self.before(interpreter, name, self.forget)
        self.before(bodies, "declares", self.forget)
        self.before(Operator, "decide", self.forget)

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
        def creating(
            effect: nodes.Perform, f: Any, shown: tuple[Any, ...] = (), depth: int | None = None
        ) -> None:
            parts = self._parts_of((f, shown))
            create(effect, _Performing(f, parts, self) if parts else f, shown, depth)

        return creating

    def _running(self, run: Callable[..., Any]) -> Callable[..., Any]:
        async def running(effect: Any, *args: Any, **kwargs: Any) -> Any:
            self._use(effect)
            try:
                return await run(effect, *args, **kwargs)
            except BaseException:
                self.forget()
                raise

        return running

    def _add(self, effect: object, name: str) -> CreatedEffect:
        key = id(effect)
        created = CreatedEffect(name, *_caller(), key)

        def die(dead: weakref.ref[Any]) -> None:
            if self._pending.get(key) == (created, dead):
                del self._pending[key]
                self.report(created)

        self._pending[key] = created, weakref.ref(effect, die)
        return created

    def forget(self, *_: object) -> None:
        """Stop watching the effects that exist now."""
        self._pending.clear()

    def _use(self, whole: object) -> None:
        if self._pending:
            self.mark_used(self._parts_of(whole))

    def _parts_of(self, whole: object) -> list[CreatedEffect]:
        """Return the effects inside an object that are not used yet."""
        found: list[CreatedEffect] = []
        pending, is_searched = self._pending, self._is_searched
        left = [whole] if pending else []
        seen: set[int] = set()
        while left:
            part: Any = left.pop()
            key, kind = id(part), cast("type[Any]", type(part))
            if kind in _WITHOUT_PARTS or key in seen:
                continue
            if kind not in is_searched:
                is_searched[kind] = is_dataclass(kind) or issubclass(kind, _SEARCHED)
            seen.add(key)
            if len(seen) > _MOST_OBJECTS:
                self.forget()
                break
            if key in pending:
                created, alive = pending[key]
                if alive() is part:
                    found.append(created)
            if kind is FunctionType:
                left += [part.__closure__, part.__defaults__, part.__kwdefaults__]
            elif kind is _Performing:
                # Its parts were found when it was created. To find them again for every effect around
                # it would take time and memory that double with each level.
                left += part.parts
                if not part.parts or isinstance(part.f, _Performing):
                    left.append(part.f)
            elif kind is CreatedEffect:
                if part.key in pending and pending[part.key][0] is part:
                    found.append(part)
            elif is_searched[kind]:
                left += gc.get_referents(part)
        return found


class UnusedEffectsOfAProgram(UnusedEffects):
    """Warns of each such effect at once, in Python's development mode; once for each line of code."""

    def __init__(self) -> None:
        super().__init__()
        self._warned: dict[Any, Any] = {}

    def report(self, created: CreatedEffect) -> None:
        message = f"{created.name} was created and never run"
        warnings.warn_explicit(
            message, ResourceWarning, created.file, created.line, registry=self._warned
        )


def watch_program() -> None:
    """Warn of effects that are never run, until the program ends."""
    watch = UnusedEffectsOfAProgram()
    watch.__enter__()

    def end() -> None:
        # What is destroyed from here on could have been run.
        watch.__exit__()
        watch.forget()

    atexit.register(end)


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
"""Nodes that run their source first, so the source counts as used only when it is run."""

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
