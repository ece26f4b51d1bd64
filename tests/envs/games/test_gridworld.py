from __future__ import annotations

import random
from typing import Any

import pytest

from agentgym.env import registry
from agentgym.env.contract import TextEnv
from agentgym.env.suites import load_suite
from agentgym.envs.games import gridworld
from agentgym.envs.games.gridworld import Grid
from agentgym.errors import EnvError
from agentgym.records import ErrorKind, Task

# A . O .
# # . . G      shortest: right, down, right, right = 4 moves; through the hole it would be 4 too.
ROWS = ("A.O.", "#..G")


def _env(**kwargs: Any) -> TextEnv:
    return registry.make(gridworld.ENV_ID, **kwargs)


def _outcome(env: TextEnv, task: Task, move: str | None = None) -> float:
    """Return the outcome of the expert, or of one repeated move."""
    env.reset(seed=0, options={"task": task})
    while True:
        _, _, terminated, _, info = env.step(move or env.expert())
        if terminated:
            return info["outcome"]


def _task() -> Task:
    return Task(id="t", env_id=gridworld.ENV_ID, payload={"rows": list(ROWS)})


def test_distances_go_round_walls_and_holes() -> None:
    found = gridworld.distances(Grid.parse(ROWS))
    # (0,2) is a hole and (1,0) a wall: neither is there.
    assert found == {(1, 3): 0, (1, 2): 1, (0, 3): 1, (1, 1): 2, (0, 1): 3, (0, 0): 4}


def test_walk_to_the_goal() -> None:
    env = _env()
    first, _ = env.reset(seed=0, options={"task": _task()})
    assert first == "A.O.\n#..G\n6 moves left."
    assert env.step("right")[0] == ".AO.\n#..G\n5 moves left."
    assert env.step("I go DOWN!")[0] == "..O.\n#A.G\n4 moves left."
    env.step("right")
    observation, reward, terminated, _, _ = env.step("right")
    assert (observation, reward, terminated) == ("You reached the goal.", 1.0, True)


def test_wall_and_border_stop_a_move_which_is_spent() -> None:
    env = _env()
    env.reset(seed=0, options={"task": _task()})
    assert env.step("down")[0] == "A wall is in the way.\nA.O.\n#..G\n5 moves left."
    assert env.step("left")[0] == "A wall is in the way.\nA.O.\n#..G\n4 moves left."


def test_hole_ends_the_episode_unsolved() -> None:
    env = _env()
    env.reset(seed=0, options={"task": _task()})
    env.step("right")
    observation, _, terminated, _, info = env.step("right")
    assert (observation, terminated, info["outcome"]) == ("You fell into a hole.", True, 0.0)


def test_budget_is_the_shortest_path_and_the_slack() -> None:
    env = _env(slack=1)
    env.reset(seed=0, options={"task": _task()})
    ends = [env.step("up") for _ in range(5)]
    assert [end[2] for end in ends] == [False] * 4 + [True]
    assert ends[-1][0] == "A wall is in the way. No move left."


@pytest.mark.parametrize("text", ["", "jump", "up down"])
def test_anything_but_one_move_is_a_format_error_and_costs_a_move(text: str) -> None:
    env = _env()
    env.reset(seed=0, options={"task": _task()})
    observation, _, _, _, info = env.step(text)
    assert observation.startswith("Write one of: up, down, left, right.")
    assert observation.endswith("5 moves left.")
    assert info["error_kind"] is ErrorKind.FORMAT


def test_expert_solves_200_held_out_tasks_in_the_fewest_moves() -> None:
    env = _env(slack=0)
    for task in load_suite("games/gridworld").tasks("held_out", limit=200):
        assert _outcome(env, task) == 1.0, task.id


def test_no_task_is_solved_by_one_repeated_move() -> None:
    env = _env()
    for index in range(200):
        task = gridworld.generate_task(index, levels=(1,))
        for move in gridworld.MOVES:
            assert _outcome(env, task, move) == 0.0, (task.id, move)


def test_splits_are_disjoint_by_map_m6() -> None:
    maps = {
        split: {gridworld.generate_task(i, split=split, levels=(1,)).prompt for i in range(800)}
        for split in ("train", "held_out")
    }
    assert min(len(found) for found in maps.values()) > 750  # few of the small maps repeat
    assert maps["train"].isdisjoint(maps["held_out"])


@pytest.mark.parametrize("rows", [("A.",), ("AG", "G."), ()])
def test_grid_without_one_agent_and_one_goal_is_refused(rows: tuple) -> None:
    with pytest.raises(EnvError, match="one 'A' and one 'G'"):
        Grid.parse(rows)


@pytest.mark.parametrize("slack", [1.5, "abc", True, None, -1, 11, 500, [2]])
def test_slack_is_an_integer_in_its_range(slack: object) -> None:
    with pytest.raises(EnvError) as caught:
        _env(slack=slack)
    assert str(caught.value) == f"'slack' must be an integer in [0, 10] (got {slack!r})"


@pytest.mark.parametrize("slack", [0, 1, 2, 10])
def test_limits_leave_room_for_every_move_that_is_promised(slack: int) -> None:
    env = _env(slack=slack)
    assert env.limits.max_turns == 60 + slack
    first, _ = env.reset(seed=0, options={"task": _task()})
    assert first.endswith(f"\n{4 + slack} moves left.")
    ends = [env.step("nonsense")[2] for _ in range(4 + slack)]
    assert ends == [False] * (3 + slack) + [True]


# Slack 6 is 4 moves above the usual one: 0.03 + 4 * 0.008.
@pytest.mark.parametrize(("slack", "score"), [(0, 0.03), (2, 0.03), (6, 0.062), (10, 0.094)])
def test_null_score_follows_the_slack(slack: int, score: float) -> None:
    env = _env(slack=slack)
    assert env.null_score == score
    rng, won = random.Random(3), 0.0
    for index in range(1500):
        task = gridworld.generate_task(index, split="held_out", levels=(1,))
        env.reset(seed=index, options={"task": task})
        terminated, info = False, {}
        while not terminated:
            _, _, terminated, _, info = env.step(rng.choice(list(gridworld.MOVES)))
        won += info["outcome"]
    assert won / 1500 <= score


@pytest.mark.parametrize(
    "levels", [True, [True], None, "abc", "12", [[1]], [1, [2]], {1: 2}, [1.0], [], [6], b"\x01"]
)
def test_levels_are_checked(levels: Any) -> None:
    with pytest.raises(EnvError) as caught:
        _env(levels=levels)
    assert str(caught.value) == f"'levels' must be some of (1, 2, 3, 4, 5) (got {levels!r})"
    with pytest.raises(EnvError, match="'levels' must be some of"):
        gridworld.generate_task(0, levels=levels)


@pytest.mark.parametrize("levels", [2, [2], (2, 2), {2}, range(2, 3)])
def test_one_level_in_any_form(levels: Any) -> None:
    assert gridworld.generate_task(3, levels=levels).id == "gridworld-2-train-000003"
