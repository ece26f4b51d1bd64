"""Where blocking calls run: the engine's threads while it drives, asyncio's own otherwise."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_executor: contextvars.ContextVar[Executor | None] = contextvars.ContextVar(
    "agentgym_blocking_executor", default=None
)


_calls: contextvars.ContextVar[list[Future[Any]] | None] = contextvars.ContextVar(
    "agentgym_blocking_calls", default=None
)


@contextmanager
def use_executor(executor: Executor | None) -> Generator[None]:
    """Run blocking calls of this context, and of tasks started in it, in `executor`."""
    token = _executor.set(executor)
    try:
        yield
    finally:
        _executor.reset(token)


@contextmanager
def watched_calls() -> Generator[list[Future[Any]]]:
    """Collect the blocking calls of this context: one that is given up runs on in its thread."""
    token = _calls.set(calls := [])
    try:
        yield calls
    finally:
        _calls.reset(token)


async def run_blocking(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `function(*args, **kwargs)`, run in a thread, with this context's variables."""
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    executor, calls = _executor.get(), _calls.get()
    if executor is None:
        return await asyncio.get_running_loop().run_in_executor(None, call)
    future = executor.submit(call)
    if calls is not None:
        calls.append(future)
    return await asyncio.wrap_future(future)


def is_in_a_loop() -> bool:
    """Return whether a loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return a coroutine's result from synchronous code, inside a running loop too.

    Inside a running loop it gets a loop and a thread of its own, and this thread waits.
    """
    if not is_in_a_loop():
        return asyncio.run(coroutine)
    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="agentgym-sync-step") as pool:
        return pool.submit(context.run, asyncio.run, coroutine).result()


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits, without a loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise RuntimeError("a coroutine that was to finish at once waits for something")
