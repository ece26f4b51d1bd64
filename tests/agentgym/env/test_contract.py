"""`TextEnv`: the contract of Gymnasium and what ours adds."""

import random
from typing import Any

import gymnasium
import pytest

from agentgym.env import registry
from agentgym.env.contract import Action, Reply, TextEnv, UnicodeText
from agentgym.env.registry import register_env
from agentgym.errors import EnvError
from agentgym.records import ErrorKind, FinishReason, Task, ToolCall
from agentgym.tool_formats.base import ParsedAction


class Counting(TextEnv):
    """Observation t at step t; ends at `goal` with outcome 1."""

    reward_weights = {"step": 0.25}  # noqa: RUF012 - as an author writes it

    def __init__(self, *, goal: int = 3, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.goal = goal

    def start(self, task: Task, rng: random.Random) -> str:
        self.count = 0
        return f"0 {rng.random():.3f}"

    def respond(self, action: Action) -> Reply:
        self.count += 1
        is_over = self.count == self.goal
        return Reply(
            observation=str(self.count),
            outcome=1.0 if is_over else None,
            rewards={"step": 1.0, "other": 5.0},
        )

    def outcome(self) -> float:
        return self.count / 10


@pytest.fixture
def env() -> Counting:
    return Counting()


def test_unicode_text_holds_any_string_and_nothing_else() -> None:
    space = UnicodeText(seed=3)
    assert "naïve 東京\n😀" in space
    assert "" in space
    assert 7 not in space
    assert space.sample() in space
    assert space == UnicodeText()
    assert UnicodeText(seed=3).sample() == UnicodeText(seed=3).sample()


def test_action_is_a_string_with_what_was_found() -> None:
    parsed = ParsedAction(calls=(ToolCall(id="call_0", name="f"),), answer=None)
    action = Action("text", finish_reason=FinishReason.LENGTH, parsed=parsed)
    assert (action, action.finish_reason) == ("text", FinishReason.LENGTH)
    assert action.tool_calls == parsed.calls
    assert Action("x").finish_reason is FinishReason.STOP
    assert (Action("x").is_parsed, action.is_parsed) == (False, True)


def test_reward_is_weighted_parts_plus_outcome(env: Counting) -> None:
    env.reset(seed=1)
    # 'step' weighs 0.25; 'other' has no weight.
    assert [env.step("x")[1] for _ in range(3)] == [0.25, 0.25, 1.25]


def test_counter_is_zero_after_reset_j1(env: Counting) -> None:
    env.reset(seed=1)
    env.step("x")
    observation, _ = env.reset(seed=1)
    assert (env.count, observation.split()[0]) == (0, "0")


def test_episodes_have_equal_length_and_return_j3(env: Counting) -> None:
    for _ in range(3):
        env.reset(seed=1)
        rewards: list[float] = []
        is_over = False
        while not is_over:
            _, reward, is_over, _, _ = env.step("x")
            rewards.append(reward)
        assert (len(rewards), sum(rewards)) == (3, 1.75)


def test_seeded_reset_is_free_of_global_randomness_j4(env: Counting) -> None:
    first = env.reset(seed=7)
    random.random()
    again = env.reset(seed=7)
    assert first == again
    tasks = {env.reset(seed=seed)[1]["task"].content_hash for seed in range(10)}
    assert len(tasks) == 10


def test_unseeded_reset_does_not_depend_on_the_last_length_j5(env: Counting) -> None:
    nexts: list[Any] = []
    for turns in (1, 2):
        env.reset(seed=3)
        for _ in range(turns):
            env.step("x")
        nexts.append(env.reset())
    assert nexts[0] == nexts[1]
    # And the resets that follow each other differ.
    assert env.reset()[1]["task"] != nexts[1][1]["task"]


def test_vector_reset_gives_each_its_seed_j6() -> None:
    register_env("test/counting-v0")(Counting)
    try:
        envs = gymnasium.vector.SyncVectorEnv(
            [lambda: gymnasium.make("test/counting-v0") for _ in range(3)]
        )
        one, _ = envs.reset(seed=10)
        again, _ = envs.reset(seed=10)
        alone = [Counting().reset(seed=seed)[0] for seed in (10, 11, 12)]
        assert list(one) == list(again) == alone
        envs.close()
    finally:
        registry.unregister_env("test/counting-v0")


# goal, limit -> (terminated, truncated) at the last step. Gymnasium's TimeLimit reports both where
# they coincide; terminated is the stronger one for whoever reads it.
@pytest.mark.parametrize(
    ("goal", "limit", "ends", "at"),
    [(9, 4, (False, True), 4), (4, 4, (True, True), 4), (2, 4, (True, False), 2)],
)
def test_step_limit_of_make_reaches_the_environment_j7(
    goal: int, limit: int, ends: tuple[bool, bool], at: int
) -> None:
    register_env("test/counting-v0")(Counting)
    try:
        env = gymnasium.make("test/counting-v0", max_episode_steps=limit, goal=goal)
        env.reset(seed=1)
        steps = 0
        while True:
            _, _, terminated, truncated, _ = env.step("x")
            steps += 1
            if terminated or truncated:
                break
        assert ((terminated, truncated), steps) == (ends, at)
    finally:
        registry.unregister_env("test/counting-v0")


def test_step_before_reset_and_after_the_end_raises(env: Counting) -> None:
    with pytest.raises(EnvError, match="call reset first"):
        env.step("x")
    env.reset(seed=1)
    for _ in range(3):
        env.step("x")
    with pytest.raises(EnvError, match="call reset first"):
        env.step("x")


def test_close_may_be_called_twice(env: Counting) -> None:
    env.close()
    env.reset(seed=1)
    env.close()
    env.close()


def test_truncation_of_the_environments_own_takes_its_outcome() -> None:
    class Bounded(Counting):
        def respond(self, action: Action) -> Reply:
            self.count += 4
            return Reply(observation="late", is_truncated=True)

    env = Bounded()
    env.reset(seed=1)
    _, reward, terminated, truncated, info = env.step("x")
    assert (terminated, truncated, info["outcome"], reward) == (False, True, 0.4, 0.4)


def test_cut_off_action_does_not_reach_respond_c4(env: Counting) -> None:
    env.reset(seed=1)
    _, _, _, _, info = env.step(Action("x", finish_reason=FinishReason.LENGTH))
    assert (env.count, info["error_kind"]) == (0, ErrorKind.TRUNCATED)


async def test_astep_gives_what_step_gives(env: Counting) -> None:
    other = Counting()
    env.reset(seed=1)
    other.reset(seed=1)
    for _ in range(3):
        assert await env.astep("x") == other.step("x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 1}, r"option 'task' only \(got \['tasks'\]\)"),
        ({"task": "x"}, r"must be a Task \(got str\)"),
    ],
)
def test_reset_refuses_other_options(
    env: Counting, options: dict[str, object], message: str
) -> None:
    with pytest.raises(EnvError, match=message):
        env.reset(seed=1, options=options)


def test_reset_refuses_the_task_of_another_environment() -> None:
    register_env("test/counting-v0")(Counting)
    try:
        env = registry.make("test/counting-v0")
        with pytest.raises(
            EnvError, match=r"test/counting-v0 cannot pose a task of 'test/other-v0'"
        ):
            env.reset(options={"task": Task(id="a", env_id="test/other-v0")})
    finally:
        registry.unregister_env("test/counting-v0")


def test_outcome_outside_its_range_is_the_environments_fault() -> None:
    with pytest.raises(EnvError, match=r"outcome must be in \[0, 1\] \(got 1.5\)"):
        Reply(outcome=1.5)


def test_render_shows_the_last_observation(env: Counting) -> None:
    env.reset(seed=1)
    env.step("x")
    assert env.render() == "1"


# Class: *coercion in place of refusal*.
@pytest.mark.parametrize("action", [None, 7, b"x", ["x"]])
def test_f40_step_refuses_what_is_no_text(env: Counting, action: Any) -> None:
    env.reset(seed=1)
    with pytest.raises(EnvError, match=r"an action is text, such as 'yes' \(got "):
        env.step(action)
    assert env.count == 0


# Class: *asking the raw text instead of the answer*.
@pytest.mark.parametrize(
    ("text", "spoken", "answer", "error"),
    [
        (" yes ", " yes ", "yes", False),
        ("<think>7 or 8</think>9", "9", "9", False),
        ("7 or 8</think> 9", " 9", "9", False),  # the template wrote the opening
        ("<think>a</think>x<think>b</think>y", "y", "y", False),
        ("<think>a</think>", "", "", False),
        ("<think>7 or 8", "", None, True),
        ("<think>a</think><think>9", "", None, True),
    ],
)
def test_f29_plain_action_is_read_behind_its_reasoning(
    env: Counting, text: str, spoken: str, answer: str | None, error: bool
) -> None:
    env.reset(seed=1)
    action = env.as_action(text)
    assert (action.spoken, action.answer) == (spoken, answer)
    assert (action.parsed.error is not None) is error
    assert str(action) == text
