"""The books of a group: which episodes are left to run, and what their next try is called."""

from __future__ import annotations

from agentgym.records import ErrorKind, Failure, Group, StopReason, Task, Trajectory
from agentgym.rollouts.group import GroupRun, GroupSpec

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
    assert run(record(0, kind="failed"), record(2)).missing == (0, 1)


def test_group_bounds_the_tries_of_a_process_h8() -> None:
    group = run(retries=1)
    group.report(record(0, kind="failed"))
    assert group.may_try(0)
    group.report(record(0, 1, kind="failed"))
    assert not group.may_try(0)
    group.report(record(1, kind="faulty"))  # a fault that would come again
    assert not group.may_try(1)


def test_failures_of_an_earlier_process_do_not_use_up_the_tries() -> None:
    # The outage, or the fault of the environment, that ended it may be mended.
    twice = (record(0, kind="failed"), record(0, 1, kind="failed"), record(1, kind="faulty"))
    group = run(*twice, retries=0)
    assert group.missing == (0, 1, 2)
    assert group.next_attempt(0) == 2
    group.report(record(0, 2, kind="failed"))
    assert not group.may_try(0)


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
