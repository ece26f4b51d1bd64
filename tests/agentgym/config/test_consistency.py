"""Settings that contradict each other or would do nothing."""

from __future__ import annotations

import pydantic
import pytest

from agentgym.config import InvalidInputError, RolloutConfig, RunConfig, load_config

# (settings, the setting that the sentence is about, words of the sentence)
CONTRADICTIONS = [
    ({"rollout": {"temperature": 0}}, "rollout.temperature", "greedy episodes"),
    ({"rollout": {"top_p": 0.9}}, "rollout.top_p", "rollout.top_p=0.9 cuts tokens off"),
    ({"rollout": {"top_k": 5, "min_p": 0.1}}, "rollout.top_k", "top_k=5, rollout.min_p=0.1"),
    # 3 epochs x 2 minibatches = 6 updates a step
    (
        {"rollout": {"max_staleness": 5}, "optim": {"epochs": 3, "minibatches": 2}},
        "rollout.max_staleness",
        "0 or at least the 6 updates of a step (got 5)",
    ),
    (
        {"rollout": {"max_staleness": 1}, "deterministic": True},
        "rollout.max_staleness",
        "'deterministic' needs 'rollout.max_staleness' 0 (got 1)",
    ),
    (
        {"rollout": {"stragglers": "close", "min_group_size": 9, "group_size": 8}},
        "rollout.min_group_size",
        "at most 'rollout.group_size' 8 (got 9)",
    ),
    (
        {"optim": {"minibatches": 3}, "rollout": {"groups_per_step": 2}},
        "optim.minibatches",
        "(got 3 for 2 groups)",
    ),
    # 4 steps x 2 epochs x 3 minibatches = 24 updates
    (
        {"steps": 4, "optim": {"epochs": 2, "minibatches": 3, "warmup_steps": 25}},
        "optim.warmup_steps",
        "24 updates (got 25)",
    ),
    ({"warmstart": {"path": "w", "steps": 3}}, "warmstart.path", "must be 0 (got 3)"),
    ({"policy": "openai:https://host"}, "policy", "gives no token ids"),
    ({"envs": [{"name": "a/b-v0"}, {"name": "a/b-v0"}]}, "envs", "lists 'a/b-v0' twice"),
]


@pytest.mark.parametrize(("settings", "key", "words"), CONTRADICTIONS)
def test_contradiction_is_one_sentence(settings: dict, key: str, words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        load_config(settings=settings)
    assert [problem.key for problem in caught.value.problems] == [key]
    assert words in str(caught.value)


@pytest.mark.parametrize("settings", [settings for settings, _, _ in CONTRADICTIONS])
def test_contradiction_raises_at_construction_too(settings: dict) -> None:
    with pytest.raises(InvalidInputError):
        RunConfig(**settings)


def test_neighbours_of_contradictions_are_fine() -> None:
    config = load_config(
        settings={
            "steps": 4,
            "optim": {"epochs": 2, "minibatches": 3, "warmup_steps": 24},
            "rollout": {"groups_per_step": 3},
            "envs": [{"name": "a/b-v0"}, {"name": "a/b-v0", "kwargs": {"level": 2}}],
        }
    )
    assert len(config.envs) == 2


def test_contradiction_with_a_wrong_value_is_left_out() -> None:
    # 'groups_per_step' stands at its default after the wrong value is dropped: no word of it.
    with pytest.raises(InvalidInputError) as caught:
        load_config(settings={"rollout": {"groups_per_step": 0}, "optim": {"minibatches": 17}})
    assert len(caught.value.problems) == 1
    assert "'rollout.groups_per_step' must be > 0 (got 0)" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"model.lora_alpha": 4}, "model.lora_alpha"),
        ({"policy": "some/folder", "warmstart.demos": 5}, "warmstart.demos"),
        ({"eval.at_start": False, "eval.at_end": False, "eval.tasks": 5}, "eval.tasks"),
    ],
)
def test_setting_that_nothing_reads_is_refused(settings: dict, key: str) -> None:
    with pytest.raises(InvalidInputError, match=f"'{key}' would be without effect") as caught:
        load_config(settings=settings)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"model.lora_alpha": 4, "model.lora_rank": 2},
        {"policy": "some/folder", "warmstart.demos": 5, "warmstart.steps": 1},
        {"policy": "some/folder", "warmstart.demos": 2_000},  # the default says nothing
        {"eval.at_start": False, "eval.at_end": False, "eval.every": 3, "eval.tasks": 5},
    ],
)
def test_setting_that_is_read_is_accepted(settings: dict) -> None:
    load_config(settings=settings)


def test_evaluation_is_not_judged_as_training() -> None:
    config = load_config(assignments=["rollout.temperature=0"], is_training=False)
    assert config.rollout.temperature == 0


def test_config_is_frozen_and_its_sampling_is_complete() -> None:
    config = RunConfig(rollout=RolloutConfig(temperature=0.7, max_new_tokens=9))
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        config.seed = 3
    sampling = config.rollout.sampling()
    assert (sampling.temperature, sampling.max_new_tokens, sampling.top_p) == (0.7, 9, 1.0)


def test_evaluation_does_not_inherit_training_sampling_m8() -> None:
    config = load_config(assignments=["rollout.temperature=0.7", "rollout.max_new_tokens=9"])
    assert config.eval.sampling().temperature == 1.0
    assert config.eval.sampling().max_new_tokens == 64  # the policy's own default for evaluation


def test_limits_are_none_unless_given() -> None:
    limits = load_config(assignments=["limits.max_turns=3"]).limits.to_limits()
    assert (limits.max_turns, limits.max_tokens, limits.step_timeout_s) == (3, None, None)
