"""The judge of formulas: math-verify in a pool of processes that can be killed."""

from __future__ import annotations

import atexit
import importlib.util
import threading
from enum import StrEnum

from agentgym.envs.math.processes import Ending, PoolStatus, ProcessPool
from agentgym.errors import MissingExtraError

_MODULE = "agentgym.envs.math.grading.symbolic_worker"


class Verdict(StrEnum):
    """What the symbolic judge found."""

    EQUAL = "equal"
    DIFFERENT = "different"
    READABLE = "readable"
    BAD_GOLD = "bad_gold"
    BAD_ANSWER = "bad_answer"
    TOO_LARGE = "too_large"
    TIMEOUT = "timeout"


_ENDINGS = {Ending.TIMEOUT: Verdict.TIMEOUT, Ending.DIED: Verdict.TOO_LARGE}


class SymbolicJudge:
    """Compares formulas in other processes.

    Args:
        size: Processes at most; each is started when it is first needed.
        timeout_s: Processor time of one comparison, in seconds.
    """

    def __init__(self, *, size: int = 2, timeout_s: float = 5.0) -> None:
        self._pool = ProcessPool(_MODULE, size=size, timeout_s=timeout_s)

    @property
    def status(self) -> PoolStatus:
        """How many processes were started and killed."""
        return self._pool.status

    def judge(self, *, gold: str, answer: str | None) -> Verdict:
        """Return whether two formulas are equal; for no answer, whether the gold can be read.

        Raises:
            InfrastructureError: If no process can be started.
            MissingExtraError: If math-verify is not installed.
        """
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtraError("comparing formulas", extra="math")
        outcome = self._pool.ask({"gold": gold, "answer": answer})
        return _ENDINGS.get(outcome.ending) or Verdict(outcome.reply["verdict"])

    def close(self) -> None:
        """End the processes. May be called more than once; a later request starts them anew."""
        self._pool.close()


_default_lock = threading.Lock()
_default: list[SymbolicJudge] = []


def default_judge() -> SymbolicJudge:
    """Return the judge that all environments of this process share."""
    with _default_lock:
        if not _default:
            _default.append(SymbolicJudge())
            atexit.register(_default[0].close)
        return _default[0]
