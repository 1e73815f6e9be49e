"""Durable steps, and which one is running.

`@step` makes steps from functions that return an effect, and `with_checkpointing` from any effect.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from os import urandom
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values import KnownTypes, ValueOptions, encode_arguments
from effectflow.effects import (
    Effect,
    ExecutorError,
    RetryExhausted,
    RetryPolicy,
    TimedOut,
    do,
    nodes,
)
from effectflow.effects.arguments import (
    TEST_THE_VALUE,
    add_hint,
    call_of,
    check_effects,
    check_function,
    effectful_decorator,
    is_async,
    mark_as_effectful,
    misfit_of,
    was_rejected,
)
from effectflow.effects.clock import Duration, in_seconds
from effectflow.effects.fiber import PLAIN
from effectflow.effects.functions import checked_errors, coroutine_effect
from effectflow.effects.interpreter import exit_of, exit_of_raised, interpret
from effectflow.effects.nodes import AnyEffect
from effectflow.effects.retry import check_bounded
from effectflow.effects.scope import Scope, running_step
from effectflow.effects.signatures import (
    effect_types,
    never_fails,
    returned_value,
)
from effectflow.effects.trails import add_note
from effectflow.effects.type_variables import X1, X2, X3, X4, X5, X6, X7, X8, ErrorClasses

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
P = ParamSpec("P")
X = TypeVar("X", bound=Exception)

NOTHING_TO_RETRY = (
    "it declares no failures, and an exception that it raises is a defect, which is not retried. Declare "
    "what to retry: errors=... of @step on an async function or of @effect, or the error in the "
    "annotation, as in Effect[Env, Declined, str]"
)
"""Says why a retry policy would never apply."""

NAME = re.compile(r"[^/\[\]#\x00-\x1f\ud800-\udfff]+")
"""What steps may be named."""


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The identity of the running step.

    Attributes:
        run_id: the run.
        step: the step's path within the run.
        attempt: the number of the attempt, from 1.
        idempotency_key: the same for every attempt of this step of this run, and different for any other
            step. Pass it to services that recognize repeated requests.
    """

    run_id: str
    step: str
    attempt: int

    @property
    def idempotency_key(self) -> str:
        # Imported late: most programs never ask for it.
        from urllib.parse import quote

        return f"{quote(self.run_id, safe='')}:{self.step}"


@dataclass(slots=True)
class CurrentStep:
    """The step that is running. `made` is its info, made on first use, because few steps need it.

    Pickling, for an executor, makes it, because what makes it may refer to much.
    """

    run_id: str | None
    path: str
    attempt: int
    make: Callable[[str, str, int], StepInfo] | None
    at_most_once: bool
    is_cancelled: bool = False
    made: StepInfo | None = None

    @property
    def info(self) -> StepInfo:
        if self.made is None:
            run_id = self.run_id
            if run_id is None:
                run_id = f"unrecorded-{urandom(16).hex()}"
            self.made = (self.make or StepInfo)(run_id, self.path, self.attempt)
        return self.made

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        at_most_once = self.at_most_once
        return None, {"made": self.info, "at_most_once": at_most_once, "is_cancelled": False}


@dataclass(frozen=True)
class StepDefinition:
    """The name and the options of a step.

    Attributes:
        name: its name, without `/`, `[`, `]`, `#` and control characters, which paths use, and without
            lone surrogates, which no encoding can represent.
        types: the classes that may occur in its output and errors.
        retryable: whether a failure is worth another attempt; True if None.
        at_most_once: whether it is not executed again silently if its outcome is unknown.
        retry: the policy with which the step retries its failures; None for no retries.
        timeout: the seconds that one attempt may take; None for no limit.
        code: distinguishes its function from others with the same name; None if that is not known.
        function: the qualified name of its function, for messages.
        output: the annotation of what it yields; None if that is not known.
        was: its former names, the oldest first. A run that has recorded the step under one continues it.
        is_body: whether its code is the body of a workflow, which acts only in steps.
        connection: the kind of function, if it takes the connection of a transaction; see `transaction`.
            None for other steps.
    """

    name: str
    types: KnownTypes = field(default_factory=KnownTypes.of)
    retryable: bool | Callable[[Any], bool] | None = None
    at_most_once: bool = False
    retry: RetryPolicy | None = None
    timeout: float | None = None
    code: object = None
    function: str | None = None
    output: object = None
    was: tuple[str, ...] = ()
    is_body: bool = False
    connection: Literal["plain", "async"] | None = None

    def __post_init__(self) -> None:
        wrong = next((one for one in (self.name, *self.was) if not NAME.fullmatch(one)), None)
        if wrong is not None:
            raise ValueError(
                f"{wrong!r} cannot name a step: a name must not be empty or contain '/', '[', ']', "
                "'#', control characters or lone surrogates"
            )
        if self.retry is not None:
            check_bounded(self.retry)
        if self.retryable is not None and not isinstance(self.retryable, bool):
            check_function(self.retryable, "retryable", TEST_THE_VALUE)
        if self.timeout is not None and not self.timeout >= 0:
            raise ValueError(f"a timeout must be 0 seconds or more, not {self.timeout}")

    def is_retryable(self, error: object) -> bool:
        """Return whether a failure is worth another attempt."""
        if callable(self.retryable):
            return self.retryable(error)
        return self.retryable is not False

    def may_have_happened(self, error: object) -> bool:
        """Return whether an at-most-once step may have happened despite this error."""
        return self.at_most_once and isinstance(error, TimedOut | ExecutorError)

    def _may_retry(self, error: object) -> bool:
        return not self.may_have_happened(error) and self.is_retryable(error)

    async def execute_plainly(self, step: nodes.Step, env: Any, scope: Scope) -> Any:
        """Execute the step outside a durable run."""
        if self.connection is not None:
            raise TypeError(
                f"transaction {self.name!r} needs the connection of the store of a durable run: call it "
                "in a workflow, outside of executors. A test can use an SqliteStore in a temporary folder"
            )
        at_most_once = self.at_most_once or scope.is_at_most_once
        current = CurrentStep(None, self.name, 1, step.make_info, at_most_once)
        work: AnyEffect = step.source
        if self.timeout is not None:
            work = work.timeout(self.timeout)
        if self.retry is not None:
            work = work.retry(self.retry, retryable=self._may_retry).map_err(_last_error)
        observer = scope.observer
        token = running_step.set(current)
        if observer is not None:
            observer.began(self.name)
        try:
            outcome = await interpret(work, env, scope.inside_step(PLAIN, current))
        except BaseException as raised:
            if isinstance(raised, Exception):
                add_note(raised, f"in step {self.name!r}")
            if observer is not None:
                observer.ended(self.name, exit_of_raised(raised))
            raise
        finally:
            running_step.reset(token)
        if observer is not None:
            observer.ended(self.name, exit_of(outcome))
        return outcome


def _last_error(error: Any) -> Any:
    return error.error if error.__class__ is RetryExhausted else error


def with_checkpointing(
    step: str,
    effect: Effect[Env, E, A],
    *,
    output: type[A] | None = None,
    error: object = None,
    retryable: bool | Callable[[E], bool] | None = None,
    at_most_once: bool = False,
) -> Effect[Env, E, A]:
    """Make an effect a durable step of the run that it is part of.

    1. If the journal of the run has the outcome of this step and it stands, yield it and run nothing.
    2. Otherwise append `BeforeStep`, wait until it is durable, and run the effect.
    3. Append `Completed` on success, `Failed` on failure or defect, `Interrupted` on interruption.

    If an entry cannot be saved, the run ends: the body cannot catch this, and `start` or `resume` fails
    with the `CheckpointError`. Outside a run, the effect just runs.

    Parameters:
        step: the step's name. Its identity is its path: the name, its occurrence in its fiber, and
            the parallel operators and steps around it.
        effect: the effect to run.
        output: the type of its value, needed to rebuild classes; plain data needs none. A value of
            another type is rejected.
        error: the type of its errors, needed to rebuild one that the workflow handled.
        retryable: whether a resume runs it again after a failure; a predicate receives the error. True
            if None, or if the predicate raises.
        at_most_once: whether a resume fails with OutcomeUnknown after a crash in the middle of the step,
            instead of running it again.
    """
    check_effects("with_checkpointing", effect)
    types = KnownTypes.of(output, error)
    definition = StepDefinition(step, types, retryable, at_most_once, output=output)
    return durable(definition, effect)


Effect.make_durable = staticmethod(with_checkpointing)


def durable(
    definition: StepDefinition,
    effect: AnyEffect,
    arguments: Callable[..., tuple[str, str]] | None = None,
    make_info: Callable[[str, str, int], Any] | None = None,
    shown: tuple[Any, ...] = (),
) -> AnyEffect:
    """Return an effect as a step with this definition and these arguments. `shown` is for `repr`."""
    return nodes.Step(definition, effect, arguments, make_info, shown)


class Step(Generic[P, Env, E, A]):
    """A function whose effect is a durable step. Calling it returns the effect."""

    def __init__(
        self,
        function: Callable[P, Effect[Env, E, A]],
        *,
        name: str | None = None,
        was: str | tuple[str, ...] = (),
        retryable: bool | Callable[[Any], bool] | None = None,
        at_most_once: bool = False,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        connection: Literal["plain", "async"] | None = None,
    ) -> None:
        check_function(function, "@step", "write @effect below @step")
        _check_returns_an_effect(function)
        self.function = function
        update_wrapper(self, function)
        mark_as_effectful(self, "step")
        self.definition = self._with_types(
            StepDefinition(
                name or function.__name__,
                retryable=retryable,
                at_most_once=at_most_once,
                retry=retry,
                timeout=timeout,
                code=getattr(inspect.unwrap(function), "__code__", None),
                function=function.__qualname__,
                was=(was,) if isinstance(was, str) else was,
                connection=connection,
            )
        )
        if retry is not None and timeout is None and never_fails(function):
            raise TypeError(f"@step(retry=...) on {function.__qualname__}: {NOTHING_TO_RETRY}")
        self._is_settled = self.definition.types.is_whole
        self._shown = ("suspend", function)
        parameters = inspect.signature(function).parameters
        self.parameters = tuple(parameters)
        self._gathers = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())

    @property
    def name(self) -> str:
        """The step's name."""
        return self.definition.name

    def _with_types(self, definition: StepDefinition) -> StepDefinition:
        output, error = effect_types(self.function)
        timed_out = () if definition.timeout is None else (TimedOut,)
        return replace(definition, types=KnownTypes.of(output, error, *timed_out), output=output)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Effect[Env, E, A]:
        if not self._is_settled:
            # By now, the names that the module defines later exist.
            self._is_settled = True
            self.definition = self._with_types(self.definition)
        call = StepCall(self, args, kwargs)
        return nodes.Step(self.definition, nodes.Suspend(call, self._shown), call.arguments)

    if not TYPE_CHECKING:
        # Hidden from type checkers, which therefore reject `yield from step` and the others.
        def __iter__(self) -> Never:
            raise TypeError(self._not_called(before="yield from "))

        def __await__(self) -> Never:
            raise TypeError(self._not_called(before="await "))

        def __getattr__(self, name: str) -> Never:
            problem = f"'Step' object has no attribute {name!r}"
            if hasattr(Effect, name):
                problem = self._not_called(after=f".{name}(...)")
            raise AttributeError(problem, name=name, obj=self)

        def _not_called(self, *, before: str = "", after: str = "") -> str:
            call = f"{before}{call_of(self.function)}{after}"
            return f"step {self.name!r} is not called: write `{call}`"

    def __repr__(self) -> str:
        return f"<Step {self.name!r}>"

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a call by name."""
        # Binding is slower than zip. It also accepts calls that the function will reject.
        if kwargs or self._gathers:
            signature = inspect.signature(self.function)
            return signature.bind_partial(*args, **kwargs).arguments
        if len(args) == 1 == len(self.parameters):
            # The most frequent case, at a fifth of the cost.
            return {self.parameters[0]: args[0]}
        return dict(zip(self.parameters, args))  # noqa: B905, `strict=False` takes as long as the rest


def _check_returns_an_effect(function: Callable[..., Any]) -> None:
    """Raise TypeError for a method, and for a plain function that is annotated to return a value."""
    name = function.__qualname__
    if isinstance(function, FunctionType):
        first = next(iter(inspect.signature(function).parameters), None)
        if first in ("self", "cls"):
            raise TypeError(
                f"@step takes a function, and {name} is a method: a resume has no object to call it on. "
                "Write a function, and take from the environment what its object has, such as "
                "`(yield from ask(Shop)).bank`"
            )
    returned = returned_value(function)
    if returned is not None:
        raise TypeError(
            f"@step takes a function that returns an effect, and {name} returns {returned}: make it an "
            "async function, or write @effect below @step and make the environment the first parameter"
        )


class StepCall:
    """A call of a step, with all of its arguments."""

    __slots__ = ("args", "kwargs", "step")

    def __init__(
        self, step: Step[..., Any, Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.step = step
        self.args = args
        self.kwargs = kwargs

    def __call__(self, *_: object) -> AnyEffect:
        # Only if the step runs: a resume does not even call the function of a skipped step.
        try:
            return self.step.function(*self.args, **self.kwargs)
        except TypeError as error:
            if was_rejected(error, self.step.function, self.args, self.kwargs):
                add_hint(error, self._way_out())
            raise

    def arguments(
        self, options: ValueOptions, known: Collection[int] = (), before: object = None
    ) -> tuple[str, str]:
        """Return the digest of the arguments and a preview; see `encode_arguments`."""
        step = self.step
        try:
            bound = step.bind(self.args, self.kwargs)
            return encode_arguments(bound, options, known, before, path=step.definition.name)
        except (TypeError, NotSerializable):
            # An environment that is passed cannot be saved, and that is not what is wrong with it.
            misfit = misfit_of(step.function, self.args, self.kwargs)
            if misfit is None:
                raise
            raise TypeError(f"step {step.name!r}: {misfit}. {self._way_out()}") from None

    def _way_out(self) -> str:
        """Return what to write in place of a call that the function rejects."""
        function = self.step.function
        if effectful_decorator(function) is None:
            return (
                "@step passes only these arguments. If the first parameter is the environment, write "
                "@effect below @step, and the environment is passed for you"
            )
        passed = "environment" if self.step.definition.connection is None else "connection"
        return f"Write {call_of(function)}: the {passed} is passed for you"


@overload
def step(function: Callable[P, Effect[Env, E, A]], /) -> Step[P, Env, E, A]: ...
@overload
def step(
    function: Callable[P, Generator[Effect[Env, E, Any], Any, A]], /
) -> Step[P, Env, E, A]: ...
@overload
def step(function: Callable[P, Coroutine[Any, Any, A]], /) -> Step[P, object, Never, A]: ...
@overload
def step(
    *,
    name: str | None = None,
    was: str | tuple[str, ...] = (),
    retry: RetryPolicy | None = None,
    timeout: None = None,
    retryable: bool | Callable[[Any], bool] | None = None,
    at_most_once: bool = False,
) -> StepDecorator: ...
@overload
def step(
    *,
    name: str | None = None,
    was: str | tuple[str, ...] = (),
    retry: RetryPolicy | None = None,
    timeout: Duration,
    retryable: bool | Callable[[Any], bool] | None = None,
    at_most_once: bool = False,
) -> TimedStepDecorator: ...
@overload
def step(
    *,
    errors: ErrorClasses[X1, X2, X3, X4, X5, X6, X7, X8],
    name: str | None = None,
    was: str | tuple[str, ...] = (),
    retry: RetryPolicy | None = None,
    timeout: None = None,
    retryable: bool | Callable[[Any], bool] | None = None,
    at_most_once: bool = False,
) -> CoroutineStepDecorator[X1 | X2 | X3 | X4 | X5 | X6 | X7 | X8]: ...
@overload
def step(
    *,
    errors: ErrorClasses[X1, X2, X3, X4, X5, X6, X7, X8],
    name: str | None = None,
    was: str | tuple[str, ...] = (),
    retry: RetryPolicy | None = None,
    timeout: Duration,
    retryable: bool | Callable[[Any], bool] | None = None,
    at_most_once: bool = False,
) -> CoroutineStepDecorator[X1 | X2 | X3 | X4 | X5 | X6 | X7 | X8 | TimedOut]: ...
@overload
def step(
    *,
    errors: tuple[type[X], ...],
    name: str | None = None,
    was: str | tuple[str, ...] = (),
    retry: RetryPolicy | None = None,
    timeout: None = None,
    retryable: bool | Callable[[Any], bool] | None = None,
    at_most_once: bool = False,
) -> CoroutineStepDecorator[X]: ...
@overload
def step(
    *,
    errors: tuple[type[X], ...],
    name: str | None = None,
    was: str | tuple[str, ...] = (),
    retry: RetryPolicy | None = None,
    timeout: Duration,
    retryable: bool | Callable[[Any], bool] | None = None,
    at_most_once: bool = False,
) -> CoroutineStepDecorator[X | TimedOut]: ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    errors: Any = None,
    name: str | None = None,
    was: str | tuple[str, ...] = (),
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
    retryable: bool | Callable[[Any], bool] | None = None,
    at_most_once: bool = False,
) -> Any:
    """Make the effect that a function returns a durable step; see `with_checkpointing`.

    The function returns an effect, is a generator function as for `@do`, or is an async function, which
    may await effects: `ask()` for the environment, or further steps, which are recorded within this one.

    The step has the name of the function. The classes of its output and errors are read from the return
    annotation: `Effect[Env, Error, Output]`, `Do[...]` on a generator function, and the plain output on
    an async function, whose failures are those in `errors=`. An output of another type than `Output` is
    rejected, with `NotSerializable`. The function is called when the step runs, so any other exception
    that it raises is a defect of the step. A resume does not call it for a completed step.

    The step also records a digest of its arguments. If a resume reaches it with other arguments, the run
    fails with `StepInputChanged`. Arguments must be plain data or dataclasses. Other objects, such as a
    connection or a client, belong in the environment.

    Parameters:
        errors: the class of the exceptions that are failures of an async function, or a tuple of classes.
        name: the step's name; the function's name by default.
        was: the former name of a renamed step, or several, the oldest first. A run that has recorded it
            under one of them continues it, with the same idempotency key. In one fiber, no other step may
            have such a name.
        retry: the policy with which the step retries its failures. All attempts have one path and one
            idempotency key. Each is recorded, so a resume continues the count. If the run ended by this
            step, a resume grants a new budget. The step fails with the error of its last attempt; if a
            crash cut that one off, a resume makes one more. An attempt also executes the steps inside
            this one again. Raises TypeError if the function declares no failures.
        timeout: the seconds, or a timedelta, that each attempt may take before it fails with `TimedOut`.
            Like `Effect.timeout`, it can cancel only where the attempt waits, so not while code blocks
            the event loop, or during a call of `from_blocking`.
        retryable: whether a failure is worth another attempt, by `retry` or by a resume; a predicate
            receives the error. True if None.
        at_most_once: whether a resume fails with OutcomeUnknown after a crash in the middle of the step,
            instead of running it again. An attempt that timed out is not retried. If an executor loses
            the work of the step, the run ends with OutcomeUnknown.

    Example:
        >>> from effectflow import Effect, RetryPolicy, fail, step
        >>> @step(retry=RetryPolicy.constant(0.001).with_max_retries(2), timeout=5)
        ... def charge(amount: int) -> Effect[object, str, str]:
        ...     return fail("no connection")
        >>> charge(5).run_sync(None)
        <Failure: no connection>
    """
    seconds = None if timeout is None else in_seconds(timeout)

    declared = None if errors is None else checked_errors("@step", errors)

    def decorate(function: Callable[..., Any]) -> Step[..., Any, Any, Any]:
        is_coroutine = is_async(function)
        if declared is not None and not is_coroutine:
            raise TypeError(
                f"@step(errors=...) is for async functions, and {function.__qualname__} is none: write "
                "@effect(errors=...) below @step, or declare the errors in the annotation"
            )
        if is_coroutine and effectful_decorator(function) is None:
            function = coroutine_effect(function, declared or ())
        return Step(
            do(function) if inspect.isgeneratorfunction(function) else function,
            name=name,
            was=was,
            retryable=retryable,
            at_most_once=at_most_once,
            retry=retry,
            timeout=seconds,
        )

    return decorate if function is None else decorate(function)


class StepDecorator(Protocol):
    """The result of `@step(...)`, before it receives the function."""

    @overload
    def __call__(self, function: Callable[P, Effect[Env, E, A]], /) -> Step[P, Env, E, A]: ...
    @overload
    def __call__(
        self, function: Callable[P, Generator[Effect[Env, E, Any], Any, A]], /
    ) -> Step[P, Env, E, A]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, A]], /
    ) -> Step[P, object, Never, A]: ...


class CoroutineStepDecorator(Protocol[X]):
    """The result of `@step(errors=...)`, before it receives the async function."""

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, A]], /
    ) -> Step[P, object, X, A]: ...


class TimedStepDecorator(Protocol):
    """The result of `@step(timeout=...)`. Its step may also fail with `TimedOut`."""

    @overload
    def __call__(
        self, function: Callable[P, Effect[Env, E, A]], /
    ) -> Step[P, Env, E | TimedOut, A]: ...
    @overload
    def __call__(
        self, function: Callable[P, Generator[Effect[Env, E, Any], Any, A]], /
    ) -> Step[P, Env, E | TimedOut, A]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, A]], /
    ) -> Step[P, object, TimedOut, A]: ...


def current_step() -> StepInfo:
    """Return the `StepInfo` of the step whose code is running. A plain function for any code in a step.

    It works in `@step @effect` functions, in the functions that they call, and in worker threads that
    `from_blocking` and anyio start. Raises LookupError outside steps.

    Example:
        >>> from effectflow import current_step, effect, step
        >>> @step
        ... @effect
        ... def charge(env: object, amount: int) -> str:
        ...     return f"{current_step().step}, attempt {current_step().attempt}"
        >>> charge(5).run_sync(None)
        <Success: charge, attempt 1>
    """
    current = running_step.get()
    if not isinstance(current, CurrentStep):
        raise LookupError("current_step() is known only inside the code of a step")
    return current.info


def info_of(scope: Scope) -> StepInfo | None:
    """Return the info of the current step; None between steps."""
    return scope.step.info if isinstance(scope.step, CurrentStep) else None
