"""Latency of boxes beside the raw tools, alternating: `python tests/bench/sandbox.py [--runs 200]`.

Each line is a median over alternating runs of `print(1)`; the ratios at the end are what the
project holds itself to. Engines are taken from AGENTGYM_TEST_ENGINES (see `.ci/engines`), else the
usual Docker socket; without one the container lines are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from agentgym.sandbox.backends import docker
from agentgym.sandbox.backends.bubblewrap import BubblewrapSandbox, box_python
from agentgym.sandbox.base import SandboxLimits
from agentgym.sandbox.host import cgroups, seccomp, uids
from agentgym.sandbox.pool import SandboxPool
from agentgym.sandbox.supervised.transport import memory_file

CODE = "print(1)"
ARGV = ["python3", "-c", CODE]
TARGETS = (
    ("warm lease + session", "docker exec, raw SDK", 0.15),
    ("bubblewrap one-shot", "bwrap, raw", 1.25),
    ("bubblewrap one-shot", "docker exec, raw SDK", 0.75),
    ("docker one-shot", "docker exec, raw SDK", 1.2),
)

Run = Callable[[], Awaitable[str]]


async def raw_bwrap() -> str:
    """Start `bwrap` anew with the flags of our boxes, groups and user id included."""
    box = BubblewrapSandbox()
    descriptors = {
        "seccomp": memory_file(seccomp.filter_program()),
        "passwd": memory_file(b"box:x:65534:65534::/box:/bin/sh\n"),
        "group": memory_file(b"box:x:65534:\n"),
    }
    try:
        argv = [*box._entry_argv(), "bwrap", *box._bwrap_flags(descriptors, box_python())]
        process = await asyncio.create_subprocess_exec(
            *argv, "--", box_python(), "-c", CODE,
            stdout=asyncio.subprocess.PIPE, pass_fds=tuple(descriptors.values()), env={},
            cwd="/",
        )  # fmt: skip
        output, _ = await process.communicate()
        return output.decode()
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
        await box._release()


def raw_exec(container: Any) -> Run:
    """Run a program as the engine's own client does, in a warm container."""

    async def run() -> str:
        return (await docker.in_thread(container.exec_run, ARGV)).output.decode()

    return run


def one_shot(box: Any) -> Run:
    """Run a program in one of our boxes."""

    async def run() -> str:
        return (await box.exec(ARGV)).stdout

    return run


async def fresh() -> str:
    """Make a box, run a program in it and end the box."""
    async with BubblewrapSandbox() as box:
        return (await box.exec(ARGV)).stdout


def leased(pool: SandboxPool) -> Run:
    """Lease a box, run a cell in its session, give it back; the reset is in the background."""

    async def run() -> str:
        async with pool.lease() as lease:
            return (await lease.python.run(CODE)).output

    return run


async def alternate(runs: dict[str, Run], count: int, pool: SandboxPool) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(count + 2):
        for name, run in runs.items():
            began = time.perf_counter()
            output = await run()
            took = time.perf_counter() - began
            assert output == "1\n", f"{name}: {output!r}"
            if number >= 2:  # the first two warm everything up
                times[name].append(took)
            while pool._work:  # the reset must not run into the next one's time
                await asyncio.wait(tuple(pool._work))
    return times


async def throughput(pool: SandboxPool, workers: int, count: int) -> float:
    """Return leases with one cell each, a second, resets included."""

    async def work() -> None:
        for _ in range(count):
            async with pool.lease() as lease:
                await lease.python.run(CODE)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())
    return workers * count / (time.perf_counter() - began)


def engine() -> str | None:
    listed = os.environ.get("AGENTGYM_TEST_ENGINES", "")
    engines = dict(pair.split("=", 1) for pair in listed.split(",") if pair)
    return engines.get("docker") or docker.default_engine()


async def main(count: int) -> None:
    address = engine()
    async with (
        SandboxPool(BubblewrapSandbox, size=4, warm=2, python=True) as pool,
        BubblewrapSandbox() as box,
    ):
        runs: dict[str, Run] = {
            "warm lease + session": leased(pool),
            "bubblewrap one-shot": one_shot(box),
            "bubblewrap, new box": fresh,
            "bwrap, raw": raw_bwrap,
        }
        if address is None:
            report(await alternate(runs, count, pool))
        else:
            async with docker.DockerSandbox(engine=address) as ours:
                raw = await start_raw(address)
                try:
                    runs["docker one-shot"] = one_shot(ours)
                    runs["docker exec, raw SDK"] = raw_exec(raw)
                    report(await alternate(runs, count, pool))
                finally:
                    await docker.in_thread(lambda: raw.remove(force=True))
                    raw.client.close()
        print(f"{await throughput(pool, 2, count):.1f} leases with a cell a second, 2 workers")


async def start_raw(address: str) -> Any:
    """Start a container with the bounds of our boxes."""
    client = await docker.in_thread(docker.connect, address)
    limits = SandboxLimits()
    return await docker.in_thread(
        lambda: client.containers.run(
            docker.IMAGE, ["sleep", "infinity"], detach=True, network_mode="none",
            mem_limit=cgroups.memory_bound(limits), pids_limit=limits.max_processes,
            nano_cpus=int(limits.cpu_cores * 1e9), cap_drop=["ALL"], read_only=True,
            security_opt=["no-new-privileges"], user="65534:65534",
        )
    )  # fmt: skip


def report(times: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, values in times.items():
        ordered = sorted(values)
        tenth = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
        print(
            f"{name:24s} median {medians[name] * 1e3:7.1f} ms   "
            f"10-90 % {tenth[0] * 1e3:.1f}-{tenth[1] * 1e3:.1f} ms   {len(values)} runs"
        )
    for name, base, most in TARGETS:
        if name in medians and base in medians:
            ratio = medians[name] / medians[base]
            verdict = "holds" if ratio <= most else "MISSED"
            print(f"{name} / {base}: {ratio:.3f} (at most {most}) {verdict}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    print(f"user id of boxes: {'own' if uids.needs_own_uid() else 'shared'}")
    asyncio.run(main(parser.parse_args().runs))
