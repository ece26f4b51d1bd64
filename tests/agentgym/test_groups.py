"""The books of a group: which episodes are left to run, and what their next try is called."""

from __future__ import annotations

from agentgym.groups import GroupRun, GroupSpec
from agentgym.records import ErrorKind, Failure, Group, StopReason, Task, Trajectory

SPEC = GroupSpec(id="g7", task=Task(id="t", env_id="test/env-v0"), size=3, seed=5)


def record(index: int, attempt: int = 0, *, kind: str = "ended") -> Trajectory:
    failure = None
    if kind in {"failed", "faulty"}:
        failure = Failure(
            kind=ErrorKind.INFRASTRUCTURE,
            where="env",
            message="gone",
            is_retryable=kind == "failed",
        )
    return Trajectory(
        id=SPEC.episode(index, attempt).id,
        group_id="g7",
        attempt=attempt,
        task_id="t",
        env_id="test/env-v0",
        terminated=kind == "ended",
        stop_reason=StopReason.TERMINATED if kind == "ended" else StopReason.CANCELLED,
        failure=failure,
    )


def run(*records: Trajectory, retries: int = 1, ended: list[Group] | None = None) -> GroupRun:
    return GroupRun(
        SPEC,
        records,
        retries=retries,
        on_trajectory=None,
        on_group=None if ended is None else ended.append,
    )


def test_group_runs_what_has_no_record() -> None:
    assert run().missing == (0, 1, 2)
    assert run(record(1)).missing == (0, 2)
    # Tried once and may be tried again; a fault that would come again may not.
    assert run(record(0, kind="failed"), record(2, kind="faulty")).missing == (0, 1)


def test_group_bounds_the_tries_over_processes_h8() -> None:
    twice = (record(0, kind="failed"), record(0, 1, kind="failed"))
    assert run(*twice, retries=1).missing == (1, 2)
    assert run(*twice, retries=2).missing == (0, 1, 2)


def test_a_cancelled_try_counts_as_no_failure_and_takes_a_number() -> None:
    group = run(record(0, kind="cancelled"), retries=0)
    assert group.missing == (0, 1, 2)
    assert (group.next_attempt(0), group.next_attempt(1)) == (1, 0)


def test_group_tells_once_when_its_last_episode_ends() -> None:
    ended: list[Group] = []
    group = run(record(2), ended=ended)
    for index in (1, 0):
        assert ended == []
        group.report(record(index))
        group.end_one()
    group.tell_if_ended()
    assert [[t.id for t in one.trajectories] for one in ended] == [["g7-e0", "g7-e1", "g7-e2"]]


def test_group_orders_its_records_by_episode_and_try() -> None:
    group = run(record(2), record(0, 1), record(1), record(0, kind="failed"))
    ids = [trajectory.id for trajectory in group.result().trajectories]
    assert ids == ["g7-e0", "g7-e0-a1", "g7-e1", "g7-e2"]
