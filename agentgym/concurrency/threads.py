"""Where blocking calls run: the engine's threads while it drives, asyncio's own otherwise."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import queue
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(Executor):
    """Threads for blocking calls that do not hold the process: one that never returns ends with it.

    Args:
        max_workers: Threads at most; one is begun when none is idle.
        name: Beginning of their names.
    """

    def __init__(self, max_workers: int, name: str) -> None:
        self._max_workers = max_workers
        self._name = name
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self._begun = 0
        self._idle = 0
        self._is_shut = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call `fn` in a thread, as soon as one is free.

        Raises:
            RuntimeError: After `shutdown`.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._is_shut:
                raise RuntimeError("these threads take no more calls: they are shut down")
            self._work.put((future, functools.partial(fn, *args, **kwargs)))
            if self._idle:
                self._idle -= 1
            elif self._begun < self._max_workers:
                self._begun += 1
                name = f"{self._name}_{self._begun - 1}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; `wait` waits for none, since one may never return."""
        with self._lock:
            self._is_shut = True
            while cancel_futures and not self._work.empty():
                if (item := self._work.get()) is not None:
                    item[0].cancel()
            for _ in range(self._begun):
                self._work.put(None)

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            _answer(*item)
            del item  # an idle thread keeps nothing alive
            with self._lock:
                self._idle += 1


def _answer(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - whoever asked raises it
        future.set_exception(error)
    else:
        future.set_result(result)


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
    context = contextvars.copy_context()

    def call() -> T:
        return context.run(function, *args, **kwargs)

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
