"""A "box" that isolates nothing: programs run as the user who started AgentGym.

For machines without bubblewrap and without a container engine, and for code that is trusted. It is
used only when asked for by name. Time limits, output limits and the work folder work as elsewhere;
files, network, other processes and the machine's memory are within the programs' reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import tempfile
import warnings
from typing import ClassVar

from agentgym.errors import InfrastructureError
from agentgym.sandbox.base import SandboxLimits, SandboxUnavailableError
from agentgym.sandbox.host.process_tags import owned_name
from agentgym.sandbox.host.threads import in_thread
from agentgym.sandbox.inside.supervisor import wipe
from agentgym.sandbox.supervised.bootstrap import supervisor_argv
from agentgym.sandbox.supervised.sandbox import SupervisedSandbox
from agentgym.sandbox.supervised.transport import Channel, ProcessChannel, memory_file

FOLDER_PREFIX = "agentgym-box-"


class UnsafeSandboxWarning(UserWarning):
    """Programs of an agent run without isolation."""


class SubprocessSandbox(SupervisedSandbox):
    """Programs as plain child processes, in a temporary folder."""

    name: ClassVar[str] = "subprocess"
    isolates: ClassVar[bool] = False

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        super().__init__(limits)
        self.work_dir = ""
        warnings.warn(
            "the sandbox 'subprocess' isolates nothing: what an agent writes runs with your rights",
            UnsafeSandboxWarning,
            stacklevel=2,
        )

    def _rlimits(self) -> dict[str, int]:
        return super()._rlimits() | {"RLIMIT_AS": self.limits.memory_bytes}

    def _scratch_dirs(self) -> tuple[str, ...]:
        return ()

    def _environment(self) -> dict[str, str]:
        own = os.path.dirname(sys.executable)
        path = f"{own}:{super()._environment()['PATH']}"
        return super()._environment() | {"PATH": path, "TMPDIR": self.work_dir}

    async def _launch(self) -> Channel:
        if sys.platform != "linux":
            raise SandboxUnavailableError("sandboxes need Linux")
        diagnosis = -1
        try:
            self.work_dir = tempfile.mkdtemp(prefix=owned_name(FOLDER_PREFIX) + "-")
            diagnosis = memory_file(b"")
            process = await asyncio.create_subprocess_exec(
                *supervisor_argv(sys.executable),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=diagnosis,
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            if diagnosis >= 0:
                os.close(diagnosis)
            await self._release()
            raise InfrastructureError(f"cannot start Python: {error}") from error
        return ProcessChannel(process, diagnosis)

    async def _release(self) -> None:
        folder, self.work_dir = self.work_dir, ""
        if folder:
            await in_thread(remove_folder, folder)


def remove_folder(folder: str) -> None:
    """Remove a folder that programs filled, however deep; what is not ours to remove stays."""
    with contextlib.suppress(OSError):
        wipe(folder, math.inf)
        os.rmdir(folder)
