"""One at a time on each GPU: `gpu_turn`, held while an engine starts.

vLLM measures the memory that is free, and counts what it finds taken as its own share: a second
engine that loads its weights meanwhile makes the first one end.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from agentgym.errors import InfrastructureError
from agentgym.policies.vllm.keys import private_folder

_POLL_S = 0.25


def has_gpu() -> bool:
    """Return whether there is a GPU: its driver shows itself in /dev."""
    return Path("/dev/nvidia0").exists()


def gpus_of(visible: str | None) -> tuple[str, ...]:
    """Return the names of the GPUs that a process sees, in the order in which they are locked.

    Args:
        visible: As in CUDA_VISIBLE_DEVICES; None takes this process's.
    """
    named = visible if visible is not None else os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(sorted({word.strip() for word in named.split(",") if word.strip()})) or ("0",)


@asynccontextmanager
async def gpu_turn(
    gpus: Sequence[str], *, patience_s: float, on_wait: Callable[[str], None] = lambda _: None
) -> AsyncGenerator[None]:
    """Wait until nobody of this user starts an engine on these GPUs, and keep others waiting.

    A process that ends gives its turn back, however it ends.

    Args:
        gpus: Names of GPUs; none at all is never waited for.
        patience_s: Longest wait.
        on_wait: Told once what is waited for.

    Raises:
        InfrastructureError: If it takes longer.
    """
    deadline = time.monotonic() + patience_s
    held = _take(gpus)
    if held is None:
        on_wait(f"waiting for an engine that starts on GPU {', '.join(gpus)}")
    while held is None:
        _check_patience(gpus, deadline, patience_s)
        await asyncio.sleep(_POLL_S)
        held = _take(gpus)
    with held:
        yield


@contextmanager
def blocking_gpu_turn(gpus: Sequence[str], *, patience_s: float) -> Generator[None]:
    """Do what `gpu_turn` does, for an engine whose start holds the loop anyway."""
    deadline = time.monotonic() + patience_s
    while (held := _take(gpus)) is None:
        _check_patience(gpus, deadline, patience_s)
        time.sleep(_POLL_S)
    with held:
        yield


def _check_patience(gpus: Sequence[str], deadline: float, patience_s: float) -> None:
    if time.monotonic() > deadline:
        raise InfrastructureError(
            f"another engine has been starting on GPU {', '.join(gpus)} for {patience_s:g} s"
        )


def _take(gpus: Sequence[str]) -> ExitStack | None:
    """Return the locks of all of these GPUs, or None if one of them is taken."""
    with ExitStack() as stack:
        for gpu in gpus:
            name = re.sub(r"[^\w.-]", "_", gpu)
            file = stack.enter_context((private_folder() / f"gpu-{name}.lock").open("a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
        return stack.pop_all()


__all__ = ["blocking_gpu_turn", "gpu_turn", "gpus_of", "has_gpu"]
