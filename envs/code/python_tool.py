"""The tool `python` for environments of any family: a session in a box that lasts for the episode.

class MyMathEnv(WithPython, ToolEnv):
…
"""

from __future__ import annotations

from typing import Any

from agentgym.env.contract import Reply
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.code.sandbox_client import AUTO, BoxOfEpisode
from agentgym.sandbox.base import MIB, SandboxLimits
from agentgym.sandbox.pool import Lease
from agentgym.tool_formats.tools import tool

BOX_LIMITS = SandboxLimits(
    memory_bytes=512 * MIB,
    disk_bytes=16 * MIB,
    max_processes=32,
    timeout_s=10.0,
    output_limit_bytes=2048,
)


class WithPython(ToolEnv):
    """Adds the tool `python`; stands before the environment's own base class.

    Names live from one call to the next within an episode and nowhere beyond it. The kind of
    sandbox is the class attribute `python_sandbox`, or an instance's.
    """

    python_sandbox: str = AUTO
    """Kind of sandbox; the best one present by default."""
    _python_box: BoxOfEpisode | None = None

    @tool
    async def python(self, code: str) -> str:
        """Run Python code and show what it prints; variables stay for later calls.

        Args:
            code: Lines of Python; the value of a last line that is an expression is shown.
        """
        if self._python_box is None:
            self._python_box = BoxOfEpisode(self.python_sandbox, BOX_LIMITS, python=True)

        async def run(lease: Lease) -> str:
            return (await lease.python.run(code)).observation()

        return await self._python_box.acall(run)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode, without the names of the one before."""
        self._release_python()
        return super().reset(seed=seed, options=options)

    def pack(self, reply: Reply) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return Gymnasium's five values; the box goes back when the episode has ended."""
        packed = super().pack(reply)
        if not self._is_running:
            self._release_python()
        return packed

    def close(self) -> None:
        """Give the box back."""
        super().close()
        self._release_python()

    def _release_python(self) -> None:
        if self._python_box is not None:
            self._python_box.release()
