"""Every kind of box keeps the contract, check by check."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agentgym.checks.sandbox import check_sandbox, run_check, sandbox_checks
from agentgym.errors import InfrastructureError, SandboxError
from agentgym.sandbox.backends.bubblewrap import BubblewrapSandbox, find_hierarchy
from agentgym.sandbox.backends.subprocess import SubprocessSandbox, UnsafeSandboxWarning
from agentgym.sandbox.base import ExecResult, SandboxLimits


def test_check_sandbox_has_at_least_40_checks_with_different_names() -> None:
    names = [check.name for check in sandbox_checks()]
    assert len(names) >= 40
    assert len(set(names)) == len(names)


async def test_every_check_holds(make_box, host_is_as_before) -> None:
    """Pitfalls E1 to E9 each have a check of their own in `agentgym.checks`."""
    report = await check_sandbox(make_box)
    assert not report.problems, str(report)
    assert len(report.outcomes) >= 40


@pytest.mark.parametrize(
    "name",
    [
        "the host's files are absent",
        "the host's loopback is out of reach",
        "abstract sockets of the host are out of reach",
        "programs are nobody without capabilities",
        "other wide calls are denied",
        "other boxes and host processes are not to be seen",
    ],
)
async def test_checks_of_isolation_fail_where_nothing_isolates(name: str) -> None:
    """The checks have teeth: a plain process fails them."""
    with pytest.warns(UnsafeSandboxWarning):
        box = SubprocessSandbox()
    check = next(check for check in sandbox_checks() if check.name == name)
    async with box:
        outcome = await run_check(check, box)
    assert outcome.problem is not None


def test_subprocess_says_loudly_that_it_isolates_nothing() -> None:
    with pytest.warns(UnsafeSandboxWarning, match="isolates nothing"):
        SubprocessSandbox()


@pytest.mark.parametrize("name", ["memory_bytes", "disk_bytes", "max_processes", "timeout_s"])
def test_limits_are_above_zero_h6(name: str) -> None:
    """Zero is not "for ever"."""
    with pytest.raises(SandboxError, match=f"'{name}' must be > 0"):
        SandboxLimits(**{name: 0})


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ExecResult(exit_code=0, stdout="1\n", stderr=""), "1"),
        (ExecResult(exit_code=0, stdout="", stderr=""), "[no output]"),
        (ExecResult(exit_code=3, stdout="a\n", stderr="b\n"), "a\nb\n[exit code 3]"),
        (
            ExecResult(exit_code=137, stdout="s\n", stderr="", timed_out=True, wall_s=2.04),
            "s\n[time limit reached after 2.0 s; the program was stopped]",
        ),
        (
            ExecResult(exit_code=137, stdout="", stderr="", out_of_memory=True),
            "[out of memory; the program was stopped]",
        ),
    ],
)
def test_observation_says_what_went_wrong(result: ExecResult, text: str) -> None:
    assert result.observation() == text


async def test_a_killed_box_is_an_infrastructure_failure_h8(
    make_box, kill_box, host_is_as_before
) -> None:
    """Not the program's doing, so not an ExecResult; the next call gets a new box."""
    async with make_box() as box:
        await kill_box(box)
        with pytest.raises(InfrastructureError, match="was lost"):
            await box.exec(["echo", "x"])
        assert (await box.exec(["echo", "again"])).stdout == "again\n"


async def test_a_box_that_is_not_started_says_so(make_box) -> None:
    with pytest.raises(SandboxError, match="is not started"):
        await make_box().exec(["true"])


async def test_a_limit_of_90_s_lets_70_s_pass_e9_e13(make_box) -> None:
    """Scaled by 1/35, no time in it: the deadline that is sent is the one that was asked for."""
    async with make_box() as box:
        result = await box.exec(["sh", "-c", "sleep 2; echo ok"], timeout_s=2.6)
    assert (result.stdout, result.timed_out) == ("ok\n", False)


async def test_closing_frees_everything_at_once_e11(make_box, host_is_as_before) -> None:
    """Though a reference to the box is kept."""
    box = make_box()
    await box.start()
    process = await box.start_process(["sleep", "300"])
    await box.aclose()
    assert not process.is_alive
    assert box._channel is None


@pytest.mark.service
async def test_control_groups_are_removed() -> None:
    hierarchy = find_hierarchy()
    if hierarchy is None:
        pytest.skip("this machine lets us make no control groups")
    async with BubblewrapSandbox() as box:
        assert box._group is not None
        folders = box._group.folders
        assert all(folder.is_dir() for folder in folders)
    assert not any(folder.exists() for folder in folders)


async def test_output_flood_costs_the_host_little_memory_e4(make_isolating_box) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    async with make_isolating_box() as box:
        before, began = resident(), time.monotonic()
        result = await box.exec(
            ["head", "-c", "1000000000", "/dev/zero"], timeout_s=60, output_limit=65536
        )
        assert result.exit_code == 0
        assert result.stdout_truncated
        assert resident() - before < 50_000_000
        assert time.monotonic() - began < 60
