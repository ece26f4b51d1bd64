"""From files, data and arguments to a RunConfig: layers, coercion, all problems in one report."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agentgym.config import EnvSource, InvalidInputError, RunConfig, load_config
from agentgym.config.options import RENAMED, SLOTS, options


def problems_of(*assignments: str, settings: object = None) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        load_config(assignments=assignments, settings=settings)
    return str(caught.value).splitlines()


# ------------------------------------------------------------------------------ unknown keys


def test_unknown_key_names_itself_and_the_nearest_one_n1(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("seed: 1\nlearning_ratee: 1e-5\n", encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        load_config(file=file)
    assert str(caught.value) == (
        f"{file}:2: unknown setting 'learning_ratee' (did you mean 'optim.learning_rate'?)"
    )


def test_unknown_key_starts_nothing_n1() -> None:
    code = (
        "import sys\n"
        "from agentgym.cli.main import main\n"
        "assert main(['train', 'math/arithmetic-v0', 'optim.learning_ratee=1e-5']) == 2\n"
        "print(sorted({'httpx', 'huggingface_hub'} & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
    assert "optim.learning_rate" in result.stderr


def test_unknown_key_in_a_section_suggests_its_sibling_n1() -> None:
    assert problems_of("optim.learning_ratee=1e-5") == [
        "command line: unknown setting 'optim.learning_ratee' (did you mean 'learning_rate'?)"
    ]


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("model.group_size", "belongs in section 'rollout': 'rollout.group_size'"),
        ("group_size", "belongs in section 'rollout': 'rollout.group_size'"),
        ("optim.seed", "at the top level: 'seed' or in section 'eval': 'eval.seed'"),
        ("optim.preset", "belongs at the top level: 'preset'"),
        ("optim.minutes", "belongs in section 'budget': 'budget.minutes'"),
    ],
)
def test_right_key_in_the_wrong_section_says_where_it_belongs_n2(key: str, place: str) -> None:
    (line,) = problems_of(f"{key}=3")
    assert key in line
    assert place in line


def test_three_wrong_keys_are_three_lines_n7() -> None:
    lines = problems_of("optim.epochss=1", "rollout.temprature=1", "stepps=3")
    assert len(lines) == 3
    assert ["epochs" in lines[0], "temperature" in lines[1], "'steps'" in lines[2]] == [True] * 3


def test_unknown_keys_wrong_values_and_contradictions_come_together_n7() -> None:
    lines = problems_of(
        "foo=1", "steps=-1", "optim.schedule=cosin", "rollout.top_p=0.9", "model.lora_alpha=8"
    )
    assert len(lines) == 5
    assert "unknown setting 'foo'" in lines[0]
    assert "'steps' must be > 0 (got -1)" in lines[1]
    assert "(did you mean 'cosine'?)" in lines[2]
    assert "rollout.top_p=0.9 cuts tokens off" in lines[3]
    assert "'model.lora_alpha' would be without effect" in lines[4]


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_name_used_elsewhere_is_rejected_by_name_n8(old: str) -> None:
    (line,) = problems_of(f"{old}=1")
    assert old in line
    home = RENAMED[old]
    belongs = [key for key in options() if key.rpartition(".")[2] == old]
    assert home in line or any(key in line for key in belongs)


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_name_used_elsewhere_leads_to_a_setting_that_exists_n8(old: str) -> None:
    for home in RENAMED[old].split(" and "):
        assert home in options() or home.partition(".")[0] in SLOTS


# ----------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("False", False),
        ("false", False),
        ("0", False),
        ("no", False),
        ("off", False),
        ("True", True),
        ("1", True),
        ("yes", True),
    ],
)
def test_truth_values_are_what_they_say_n3(text: str, value: bool) -> None:
    assert load_config(assignments=[f"deterministic={text}"]).deterministic is value


@pytest.mark.parametrize("text", ["maybe", "2", "", "none"])
def test_no_truth_value_is_an_error_n3(text: str) -> None:
    (line,) = problems_of(f"eval.at_start={text}")
    assert "'eval.at_start' must be true or false" in line


def test_absent_flag_leaves_the_file_alone_n4(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("allow_leak: true\ndeterministic: true\n", encoding="utf-8")
    config = load_config(file=file, assignments=["seed=4"])
    assert (config.allow_leak, config.deterministic, config.seed) == (True, True, 4)


@pytest.mark.parametrize("text", ["1e-6", "1E-6", "0.000001"])
def test_small_floats_on_the_command_line_n5(text: str) -> None:
    assert load_config(assignments=[f"optim.learning_rate={text}"]).optim.learning_rate == 1e-6


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("seed=true", "'seed' must be a number (got True)"),
        ("optim.learning_rate=true", "'optim.learning_rate' must be a number (got True)"),
        ("steps=1.5", "'steps' must be a whole number (got 1.5)"),
        ("steps=many", "'steps' must be a whole number (got 'many')"),
        ("optim.learning_rate=fast", "'optim.learning_rate' must be a number (got 'fast')"),
        ("optim.learning_rate=.inf", "'optim.learning_rate' must be a finite number (got inf)"),
        ("rollout.top_p=0", "'rollout.top_p' must be > 0 (got 0)"),
        ("warmstart.guess_share=1.5", "'warmstart.guess_share' must be <= 1 (got 1.5)"),
        ("optim.dtype=float16", "'optim.dtype' must be 'auto', 'float32' or 'bfloat16'"),
        ("optim=3", "'optim' is a section: write its settings below it (got '3')"),
        ("policy=", "'policy' must not be empty"),
    ],
)
def test_wrong_value_says_what_is_accepted(assignment: str, sentence: str) -> None:
    (line,) = problems_of(assignment)
    assert sentence in line


def test_text_stays_text_and_none_is_none() -> None:
    config = load_config(
        assignments=["run_dir=2024", "preset=1e3", "limits.max_turns=3", "budget.minutes=none"]
    )
    assert (config.run_dir, config.preset) == ("2024", "1e3")
    assert (config.limits.max_turns, config.budget.minutes) == (3, None)


# ----------------------------------------------------------------------------------- layers


def test_command_line_wins_over_data_over_file_over_policy_over_schema(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("seed: 1\nsteps: 11\npolicy: smollm2\noptim: {epochs: 5}\n", encoding="utf-8")
    config = load_config(
        file=file,
        settings={"steps": 12, "seed": 2},
        extra={"seed": 3},
        assignments=["rollout.group_size=7", "seed=4", "seed=5"],
    )
    assert (config.seed, config.steps, config.optim.epochs, config.rollout.group_size) == (
        5,  # of one key given twice the last one counts
        12,
        5,
        7,
    )
    assert config.warmstart.batch_size == 16  # smollm2's own default
    assert config.rollout.groups_per_step == 16  # the schema's default


def test_policy_default_gives_way_to_a_given_setting() -> None:
    assert load_config(assignments=["policy=tiny:base"]).warmstart.steps == 2200
    assert load_config(assignments=["policy=tiny", "warmstart.steps=7"]).warmstart.steps == 7
    assert load_config(assignments=["policy=tiny", "warmstart.path=w"]).warmstart.steps == 0
    assert load_config(assignments=["policy=some/folder"]).warmstart.steps == 0


def test_toml_and_yaml_of_the_same_settings_are_one_config(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        'steps = 5\n[optim]\nlearning_rate = 1e-6\n[[envs]]\nname = "a/b-v0"\nweight = 2.0\n'
        "[preset_overrides]\n'gate.clip_high' = 0.3\n",
        encoding="utf-8",
    )
    (tmp_path / "b.yaml").write_text(
        "steps: 5\noptim.learning_rate: 1e-6\nenvs: [{name: a/b-v0, weight: 2}]\n"
        "gate.clip_high: 0.3\n",
        encoding="utf-8",
    )
    first, second = load_config(file=tmp_path / "a.toml"), load_config(file=tmp_path / "b.yaml")
    assert first == second
    assert first.optim.learning_rate == 1e-6
    assert first.envs == (EnvSource(name="a/b-v0", weight=2.0),)
    assert first.preset_overrides == {"gate.clip_high": 0.3}


def test_nested_overrides_of_a_preset_are_flattened() -> None:
    settings = {"preset_overrides": {"gate": {"clip_high": 0.3}, "rollout.size": 4}}
    config = load_config(settings=settings, assignments=["preset_overrides.rollout.kind=tree"])
    assert config.preset_overrides == {
        "gate.clip_high": 0.3,
        "rollout.size": 4,
        "rollout.kind": "tree",
    }


class Wrapped:
    """A mapping of another library, which does not derive from Mapping."""

    def __init__(self, tree: Mapping[str, object]) -> None:
        self._tree = tree

    def keys(self) -> Iterator[str]:
        return iter(self._tree)

    def items(self) -> Iterator[tuple[str, object]]:
        for key, value in self._tree.items():
            yield key, Wrapped(value) if isinstance(value, Mapping) else value


@dataclasses.dataclass
class Lora:
    lora_rank: int = 8
    lora_alpha: float = 24.0


@dataclasses.dataclass
class Settings:
    policy: str = "some/folder"
    model: Lora = dataclasses.field(default_factory=Lora)


def test_dict_dataclass_and_wrapped_mapping_are_the_same_run_n11() -> None:
    tree = {"policy": "some/folder", "model": {"lora_rank": 8, "lora_alpha": 24.0}}
    configs = [load_config(settings=given) for given in (tree, Settings(), Wrapped(tree))]
    configs.append(load_config(settings=RunConfig(**tree)))
    assert configs[0].model.lora_rank == 8
    assert all(config == configs[0] for config in configs)


def test_settings_of_another_kind_are_refused() -> None:
    assert problems_of(settings=3) == [
        "settings must be a mapping, a dataclass or a RunConfig (got int)"
    ]


def test_key_given_nested_and_dotted_is_refused() -> None:
    (line,) = problems_of(settings={"optim": {"epochs": 1}, "optim.epochs": 2})
    assert "'optim.epochs' is given twice" in line


def test_resolved_config_is_read_back_as_it_was() -> None:
    config = load_config(assignments=["envs=a/b:weight=2:levels=[1,2]", "gate.clip_high=0.3"])
    assert load_config(settings=config.to_dict()) == config
