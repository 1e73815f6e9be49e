"""The factory of the environment of workers: checked and sent here, called there."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, cast

from effectflow.executors.call import WithoutExit
from effectflow.executors.pickling import dumps, loads

__all__ = ["environment", "factory_or_none", "write_factory"]


def factory_or_none(make_env: Callable[[], Any] | None) -> Callable[[], Any]:
    """The factory that an executor was given, or that of None. What cannot be called is refused."""
    if make_env is None:
        return _no_environment
    if not callable(make_env):
        raise TypeError(
            f"make_env makes the environment of a worker, and is called there: {make_env!r} cannot be"
        )
    return make_env


def write_factory(make_env: Callable[[], Any]) -> bytes:
    """The factory as bytes. One that cannot be pickled is refused, and the refusal says so."""
    try:
        return dumps(make_env)
    except Exception as refusal:
        refusal.add_note(
            f"while sending make_env, {make_env!r}, to the workers: it travels pickled, with all that "
            "it refers to; what cannot travel is to be made by it, there"
        )
        raise


@asynccontextmanager
async def environment(make_env: bytes) -> AsyncGenerator[Any]:
    """The environment that a pickled factory makes, for as long as it is wanted.

    An async context manager that it makes is entered, and left.
    """
    async with AsyncExitStack() as life:
        with WithoutExit("make_env"):
            made = loads(make_env)()
            if inspect.iscoroutine(made):
                made.close()
                raise TypeError(
                    "make_env gave a coroutine, which no executor awaits: an environment that is made "
                    "with `await` is to be an async context manager (`@asynccontextmanager`)"
                )
            if isinstance(made, AbstractAsyncContextManager):
                entered = cast("AbstractAsyncContextManager[Any]", made)
                made = await life.enter_async_context(entered)
        yield made


def _no_environment() -> None:
    """The environment of workers whose functions need none."""
