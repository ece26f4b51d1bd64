"""`Gate`: no request starts while weights change, and every request knows under which it starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from agentgym.errors import PolicyError


class Gate:
    """Open between changes of the weights; shut for good once a change has failed.

    Args:
        version: Learner updates behind the weights at the start.
    """

    def __init__(self, version: int) -> None:
        self.version = version
        self._open = asyncio.Event()
        self._open.set()
        self._fault: str | None = None

    async def enter(self) -> int:
        """Wait until the gate is open and return the version of the weights.

        Raises:
            PolicyError: If a change of weights failed: what samples now is not known.
        """
        while not self._open.is_set():  # the next change may begin before this task runs again
            await self._open.wait()
        if self._fault is not None:
            raise PolicyError(f"nothing samples after a failed change of weights: {self._fault}")
        return self.version

    @asynccontextmanager
    async def change_to(self, version: int) -> AsyncGenerator[None]:
        """Keep the gate shut for a change of weights; `version` holds after it.

        Raises:
            PolicyError: If another change is under way, or an earlier one failed.
        """
        if not self._open.is_set():
            raise PolicyError("weights are being changed already; wait for the first change")
        await self.enter()
        self._open.clear()
        try:
            yield
            self.version = version
        except BaseException as error:
            self._fault = str(error) or type(error).__name__
            raise
        finally:
            self._open.set()


__all__ = ["Gate"]
