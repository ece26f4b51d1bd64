"""Calls of what an environment's author wrote: who raised, what came back, sync or async.

In order: `author_code`, `described`, `is_async`, `settled`, `awaited`, the checks of what `start`,
`respond` and `grade` return, and `check_class`, which looks at a class when it is registered.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import sysconfig
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from agentgym.concurrency.threads import run_blocking, run_coroutine
from agentgym.errors import AgentGymError, EnvError, RegistryError
from agentgym.records.text import readable

_CORE = Path(__file__).parents[1]
_STDLIB = Path(sysconfig.get_paths()["stdlib"])
_PARTS = ("envs", "tasks")
"""Folders of the package that are written as an author writes: an error in them is theirs."""
_NOTE = "raised in "
_MOST_CHARS = 400
_NEVER_ASYNC = ("sample_task", "splits", "outcome", "expert", "guess", "extra_probes", "close")
_RETURNS = {
    "start": ((str, inspect.Parameter.empty, Any), "text"),
    "grade": ((float, int, bool, inspect.Parameter.empty, Any), "a number in [0, 1] or a Reply"),
}
"""Function -> annotations of its result that are right, beside ours, and what is meant."""


@contextlib.contextmanager
def author_code(env_id: str) -> Generator[None]:
    """Run what the author of an environment wrote; an error gets a note that says where it rose.

    Errors of our own say what they need in their message and pass as they are.
    """
    try:
        yield
    except (AgentGymError, NotImplementedError):
        raise
    except Exception as error:
        if not any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
            error.add_note(f"{_NOTE}{env_id}{_place(error.__traceback__)}")
        raise


def described(error: BaseException) -> str:
    """Return an error on one line: its type unless it is ours, its message, and where it rose."""
    text = " ".join(str(error).split())[:_MOST_CHARS]
    if not isinstance(error, AgentGymError):
        name = type(error).__name__
        text = f"{name}: {text}" if text else name
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(_NOTE)]
    return ", ".join([text or type(error).__name__, *notes])


def _place(trace: TracebackType | None) -> str:
    """Return `, function (file:line)` of the innermost frame that an author wrote, if any is."""
    frames: list[tuple[str, int, str]] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    foreign = [frame for frame in frames if not _is_ours_or_python(Path(frame[0]))]
    # A package that the author calls is installed; so may the author's own be.
    own = [frame for frame in foreign if not _is_installed(Path(frame[0]))]
    return next((f", {name} ({_shown(f)}:{n})" for f, n, name in reversed(own or foreign)), "")


def _is_ours_or_python(path: Path) -> bool:
    if path.is_relative_to(_CORE):
        parts = path.relative_to(_CORE).parts
        return parts[0] not in _PARTS or "adapters" in parts
    return path.is_relative_to(_STDLIB) and not _is_installed(path)


def _is_installed(path: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


# -- sync and async ----------------------------------------------------------------------------


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function is awaited by who calls it."""
    return inspect.iscoroutinefunction(function)


def settled(value: Any) -> Any:
    """Return a value, or the result of a coroutine, from synchronous code."""
    return run_coroutine(value) if inspect.iscoroutine(value) else value


async def awaited(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a function gives: awaited here if it is async, else called in a thread.

    They are told apart beforehand: a coroutine must be awaited where the engine can cancel it.
    """
    if is_async(function):
        return await cast("Awaitable[Any]", function(*args, **kwargs))
    return await run_blocking(function, *args, **kwargs)


# -- what came back ----------------------------------------------------------------------------


def text_of_start(env_id: str, value: Any) -> str:
    """Return the first observation.

    Raises:
        EnvError: If it is no text.
    """
    if not isinstance(value, str):
        raise EnvError(f"{env_id}: start must return text, the first observation (got {value!r})")
    return readable(value)


def number_of_grade(env_id: str, value: Any) -> float:
    """Return an outcome.

    Raises:
        EnvError: If it is no number in [0, 1].
    """
    is_number = hasattr(value, "__float__") and not isinstance(value, str | bytes)
    if not is_number or not (math.isfinite(float(value)) and 0 <= float(value) <= 1):
        raise EnvError(f"{env_id}: grade must return a number in [0, 1] or a Reply (got {value!r})")
    return float(value)


# -- a class when it is registered ---------------------------------------------------------------


def check_class(env_id: str, env_class: type[Any], base: type[Any]) -> None:
    """Look at a class before it is registered.

    Args:
        env_id: The id that it is to have.
        env_class: The class.
        base: `TextEnv`; nothing is known of what does not derive from it.

    Raises:
        RegistryError: If a function that is needed is missing, may not be async, or says that it
            returns something else than it must.
    """
    if not issubclass(env_class, base):
        return
    name = env_class.__qualname__
    for function in ("start", "respond"):
        if getattr(env_class, function) is getattr(base, function):
            raise RegistryError(f"{env_id}: {name} must define {function}({_ARGUMENTS[function]})")
    for function in _NEVER_ASYNC:
        if is_async(getattr(env_class, function, check_class)):
            raise RegistryError(
                f"{env_id}: {name}.{function} must not be async; only start, respond, grade and "
                "tools may"
            )
    for function, (right, meant) in _RETURNS.items():
        found = _result_annotation(getattr(env_class, function, check_class))
        if isinstance(found, type) and found not in right and found.__name__ != "Reply":
            raise RegistryError(
                f"{env_id}: {name}.{function} must return {meant} (its annotation says "
                f"{found.__name__})"
            )


_ARGUMENTS = {"start": "self, task, rng", "respond": "self, action"}


def _result_annotation(function: Callable[..., Any]) -> Any:
    try:
        return inspect.signature(function, eval_str=True).return_annotation
    except (NameError, TypeError, ValueError, SyntaxError):  # a name that only type checkers know
        return inspect.Parameter.empty
