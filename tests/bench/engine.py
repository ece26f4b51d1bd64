"""What the engine costs: CPU time a turn, and how tools of many episodes overlap.

    python tests/bench/engine.py

Prints, for 64 live episodes: CPU milliseconds a turn with a scripted policy and a trivial
environment (thread hop, records and limits included, no tokens) beside a bare asyncio loop with
the same number of awaits and thread hops; and the wall time of one turn with a tool of 0.1 s,
async and blocking, as a ratio to one call of the tool. Exit code 1 if a bound is missed.
"""

from __future__ import annotations

import asyncio
import platform
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date

from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.env.registry import register_env
from agentgym.env.tool_env import ToolEnv
from agentgym.policies.scripted import ScriptedPolicy
from agentgym.records import Task
from agentgym.rollouts.engine import Engine, GroupSpec
from agentgym.tool_formats.tools import tool

EPISODES = 64
TURNS = 10
TOOL_S = 0.1
ROUNDS = 5
MOST_CPU_MS = 0.3
MOST_TOOL_RATIO = 1.5


@register_env("bench/trivial-v0")
class Trivial(TextEnv):
    """Ends after ten turns."""

    def start(self, task: Task, rng: random.Random) -> str:
        """Begin to count."""
        self.count = 0
        return "go"

    def respond(self, action: Action) -> Reply:
        """Count."""
        self.count += 1
        return Reply(observation="ok", outcome=1.0 if self.count == TURNS else None)


class _Slow(ToolEnv):
    def start(self, task: Task, rng: random.Random) -> str:
        """Ask for the tool."""
        return "wait"

    def grade(self, answer: str) -> float:
        """Accept anything."""
        return 1.0


@register_env("bench/blocking-v0")
class Blocking(_Slow):
    """Has a tool that blocks its thread."""

    @tool
    def wait(self, text: str) -> Reply:
        """Wait."""
        time.sleep(TOOL_S)
        return Reply(observation="done", outcome=1.0)


@register_env("bench/async-v0")
class Async(_Slow):
    """Has a tool that is awaited."""

    @tool
    async def wait(self, text: str) -> Reply:
        """Wait."""
        await asyncio.sleep(TOOL_S)
        return Reply(observation="done", outcome=1.0)


def specs(env_id: str, turn: int) -> list[GroupSpec]:
    """Return one episode a task."""
    return [
        GroupSpec(id=f"r{turn}-{i}", task=Task(id=f"t{i}", env_id=env_id), size=1, seed=i)
        for i in range(EPISODES)
    ]


async def engine_cpu_ms() -> float:
    """Return the median CPU milliseconds of a turn."""
    samples: list[float] = []
    async with Engine(ScriptedPolicy(lambda request: "x"), max_concurrent=EPISODES) as engine:
        await engine.run_groups(specs("bench/trivial-v0", 0))
        for turn in range(1, ROUNDS + 1):
            began = time.process_time()
            await engine.run_groups(specs("bench/trivial-v0", turn))
            samples.append((time.process_time() - began) / (EPISODES * TURNS) * 1e3)
    return statistics.median(samples)


async def bare_cpu_ms() -> float:
    """Return the same of coroutines that do nothing but one await and one thread hop a turn."""
    loop = asyncio.get_running_loop()
    samples: list[float] = []
    with ThreadPoolExecutor(EPISODES) as pool:

        async def episode() -> None:
            for _ in range(TURNS):
                await asyncio.sleep(0)
                await loop.run_in_executor(pool, int)

        await asyncio.gather(*(episode() for _ in range(EPISODES)))
        for _ in range(ROUNDS):
            began = time.process_time()
            await asyncio.gather(*(episode() for _ in range(EPISODES)))
            samples.append((time.process_time() - began) / (EPISODES * TURNS) * 1e3)
    return statistics.median(samples)


async def tool_ratio(env_id: str) -> float:
    """Return the wall time of one turn of all episodes, over one call of the tool."""
    policy = ScriptedPolicy(lambda request: "<wait>now</wait>")
    samples: list[float] = []
    async with Engine(policy, max_concurrent=EPISODES) as engine:
        await engine.run_groups(specs(env_id, 0))
        for turn in range(1, ROUNDS + 1):
            began = time.perf_counter()
            await engine.run_groups(specs(env_id, turn))
            samples.append((time.perf_counter() - began) / TOOL_S)
    return statistics.median(samples)


def measured(function: Callable[[], Awaitable[float]]) -> float:
    """Return what a measurement gives."""

    async def main() -> float:
        return await function()

    return asyncio.run(main())


def main() -> int:
    """Measure, print, and say by the exit code whether the bounds hold."""
    engine, bare = measured(engine_cpu_ms), measured(bare_cpu_ms)
    blocking = measured(lambda: tool_ratio("bench/blocking-v0"))
    awaited = measured(lambda: tool_ratio("bench/async-v0"))
    print(f"{date.today()}, {platform.processor() or platform.machine()}, {EPISODES} live episodes")
    print(f"engine: {engine:.3f} ms CPU a turn; bare loop {bare:.3f} ms; ratio {engine / bare:.1f}")
    print(f"one turn with a tool of {TOOL_S} s: blocking {blocking:.2f}, async {awaited:.2f} calls")
    is_good = engine <= MOST_CPU_MS and max(blocking, awaited) <= MOST_TOOL_RATIO
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
