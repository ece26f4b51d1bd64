"""`code/shell-v0`: bring a folder into the state that is asked for, with a shell in a box."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.env.contract import Reply
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.code import shell_tasks
from agentgym.envs.code.sandbox_client import AUTO, BoxOfEpisode, known_sandbox, require_sandbox
from agentgym.errors import EnvError
from agentgym.records import ErrorKind, Task
from agentgym.records.limits import Limits
from agentgym.sandbox.base import MIB, Sandbox, SandboxFileError, SandboxLimits
from agentgym.sandbox.pool import Lease
from agentgym.tool_formats.tools import tool

BOX_LIMITS = SandboxLimits(
    memory_bytes=256 * MIB,
    disk_bytes=16 * MIB,
    max_processes=32,
    timeout_s=5.0,
    output_limit_bytes=2048,
)
MAX_TURNS = 6
MOST_ENTRIES = 100
"""Entries of a folder that are looked at; every wanted folder has fewer."""
MOST_BYTES = 64 * 1024
LIST = ["find", ".", "-mindepth", "1", "-printf", "%y %P\\0"]


class ShellEnv(ToolEnv):
    """Change files with the tool `shell`; then answer, with anything.

    The outcome is 1 if the folder then holds exactly the wanted files with exactly the wanted
    contents, and no link or other special file, else 0. It is looked at too when a limit ends the
    episode. Empty folders do not count.
    """

    system_prompt = "Do what is asked, with the shell. When it is done, answer done.\n{tools}"
    reset_needs: str = "a sandbox"
    null_score: float = 0.0
    answers_are_final: bool = False
    limits = Limits(max_turns=MAX_TURNS, max_observation_chars=4096, step_timeout_s=120.0)

    def __init__(
        self,
        *,
        levels: Sequence[int] = (1, 2, 3),
        sandbox: str = AUTO,
        render_mode: str | None = None,
    ) -> None:
        """Choose what is asked and where commands run.

        Args:
            levels: Levels to draw tasks from, 1 to 3.
            sandbox: Kind of sandbox; the best one present by default.
            render_mode: As in Gymnasium.

        Raises:
            EnvError: If a level is unknown, or there is none, or no such sandbox.
        """
        self.levels = shell_tasks.check_levels(levels)
        self.sandbox = known_sandbox(sandbox)
        self._box = BoxOfEpisode(sandbox, BOX_LIMITS)
        self._files: Mapping[str, str] = {}
        self._wanted: Mapping[str, str] = {}
        self._commands = 0
        super().__init__(render_mode=render_mode)

    def sample_task(self, rng: random.Random) -> Task:
        """Return a task of the training split."""
        return shell_tasks.draw_task(rng, levels=self.levels)

    def start(self, task: Task, rng: random.Random) -> str:
        """Return what is asked and which files there are."""
        require_sandbox(self.sandbox)
        self._box.release()
        self._commands = 0
        self._files = _file_table(task, "files")
        self._wanted = _file_table(task, "wanted")
        return f"{task.prompt}\nFiles: {' '.join(sorted(self._files))}"

    @tool
    async def shell(self, command: str) -> str:
        """Run a command with sh and show what it prints.

        Args:
            command: Such as ls -l.
        """
        is_first = self._commands == 0
        self._commands += 1

        async def run(lease: Lease) -> str:
            if is_first:
                await _lay_out(lease.box, self._files)
            clean = command.replace("\0", "")
            return (await lease.box.exec(["sh", "-c", clean])).observation()

        return await self._box.acall(run)

    def grade(self, answer: str) -> float:
        """Return 1 if the folder is as wanted, else 0."""
        return self.outcome()

    def outcome(self) -> float:
        """Return 1 if the folder is as wanted now, else 0."""
        if self._commands == 0:
            return 0.0  # nothing was done, and no task begins in its wanted state
        return float(self._box.call(self._is_as_wanted))

    async def _is_as_wanted(self, lease: Lease) -> bool:
        listed = await lease.box.exec(LIST, output_limit=MOST_BYTES)
        entries = [entry for entry in listed.stdout.split("\0") if entry]
        if not listed.is_ok or listed.stdout_truncated or len(entries) > MOST_ENTRIES:
            return False
        kinds = {path: kind for kind, _, path in (entry.partition(" ") for entry in entries)}
        files = {path for path, kind in kinds.items() if kind == "f"}
        if set(kinds.values()) - {"f", "d"} or files != set(self._wanted):
            return False
        return all([await _holds(lease.box, p, text) for p, text in self._wanted.items()])

    def on_text(self, text: str) -> Reply:
        """Tell the agent briefly what is missing."""
        return Reply(observation="Write shell or answer.", error_kind=ErrorKind.FORMAT)

    def pack(self, reply: Reply) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return Gymnasium's five values; the box goes back when the episode has ended."""
        packed = super().pack(reply)
        if not self._is_running:
            self._box.release()
        return packed

    def close(self) -> None:
        """Give the box back."""
        super().close()
        self._box.release()

    def expert(self) -> str:
        """Run the reference command, then answer."""
        if self.task is None or not self.task.answers:
            raise EnvError(f"{self.env_id} has no task with a solution; call reset first")
        if self._commands == 0:
            return self.protocol.format_call("shell", {"command": self.task.answers[0]})
        return self.protocol.format_answer("done")

    def guess(self, rng: random.Random) -> str:
        """Return an answer before anything is done, which is wrong."""
        return self.protocol.format_answer("done")


def _file_table(task: Task, key: str) -> Mapping[str, str]:
    table = task.payload.get(key)
    if not isinstance(table, dict) or not all(isinstance(text, str) for text in table.values()):
        raise EnvError(f"task {task.id!r}: the payload needs {key!r}, path -> content")
    return {path: str(text) for path, text in table.items()}


async def _lay_out(box: Sandbox, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        await box.write_file(path, text)


async def _holds(box: Sandbox, path: str, text: str) -> bool:
    try:
        return await box.read_file(path, max_bytes=MOST_BYTES) == text.encode()
    except SandboxFileError:
        return False
