"""F22 and rows B-2, B-3 and C-4, the class *checked after, not before*: what a model folder lacks
is told before anything is loaded, written or served, in one sentence each.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra train")

from agentgym.cli.main import main
from agentgym.config import EnvSource, RunConfig
from agentgym.errors import ConfigError
from agentgym.renderer.formats import Fixture, fixture_format
from agentgym.runs.dry_run import implications
from agentgym.runs.load_policy import acting_problems
from agentgym.runs.model_folder import find_cached, folder_problems
from agentgym.runs.policies import policy_problems, read_policy
from agentgym.trainers.models.load import load_model
from agentgym.trainers.models.tiny import build_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), seed=2)


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def change(folder: Path, file: str, **values: object) -> None:
    """Change entries of a JSON file; None removes one."""
    content = {**json.loads((folder / file).read_text()), **values}
    kept = {key: value for key, value in content.items() if value is not None}
    (folder / file).write_text(json.dumps(kept))


def cut(folder: Path, size: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])


def damage(folder: Path) -> None:
    """Say of one tensor that it has another shape than its bytes."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header["model.norm.weight"]["shape"] = [3]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def bend_index(folder: Path, name: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))


def no_end(folder: Path) -> None:
    change(folder, "tokenizer_config.json", eos_token=None)
    change(folder, "config.json", eos_token_id=None)
    change(folder, "generation_config.json", eos_token_id=None)


def only_adapter(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "no template": (lambda f: (f / "chat_template.jinja").unlink(), "has no chat template"),
    "a template that is none": (
        lambda f: (f / "chat_template.jinja").write_text("{% for %}"),
        "not valid Jinja",
    ),
    "a template without end": (
        lambda f: (f / "chat_template.jinja").write_text(
            "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"
        ),
        "it takes more than 1,000,000 steps",
    ),
    "a template that shows nothing": (
        lambda f: (f / "chat_template.jinja").write_text("hello"),
        "must show each message once",
    ),
    "no end of a message": (no_end, "nothing says which token ends a message"),
    "a tokenizer that is none": (lambda f: (f / "tokenizer.json").write_text("{"), "cannot read"),
    "a larger vocabulary": (lambda f: change(f, "config.json", vocab_size=9), "its model only 9"),
    "weights that are cut": (lambda f: cut(f, 5_000), "is cut off or damaged"),
    "weights that are empty": (lambda f: cut(f, 0), "is cut off or no safetensors file"),
    "weights that are text": (
        lambda f: (f / "model.safetensors").write_text("a pointer to large storage"),
        "is cut off or no safetensors file",
    ),
    "weights of a wrong shape": (damage, "its header does not describe its tensors"),
    "shards that are not there": (
        lambda f: bend_index(f, "model-1-of-2.safetensors"),
        "model-1-of-2.safetensors cannot be used: the file cannot be read (No such file",
    ),
    "shards elsewhere": (lambda f: bend_index(f, "../x.safetensors"), "files outside the folder"),
    "an adapter alone": (only_adapter, "holds an adapter alone"),
    "another architecture": (
        lambda f: change(f, "config.json", model_type="bert", architectures=["BertModel"]),
        "does not hold the weights of Bert",
    ),
    "one layer more": (
        lambda f: change(f, "config.json", num_hidden_layers=3, layer_types=None),
        "9 are missing (such as model.layers.2.input_layernorm.weight)",
    ),
    "another width": (lambda f: change(f, "config.json", hidden_size=256), "have another shape"),
    "an unknown architecture": (
        lambda f: change(f, "config.json", model_type="nonesuch"),
        "cannot be loaded as a causal model",
    ),
}


def test_f22_whole_folder_has_no_problems(folder: Path) -> None:
    assert list(folder_problems(folder)) == []
    assert list(policy_problems(str(folder), trained=True)) == []


@pytest.mark.parametrize("what", list(SPOILT))
def test_f22_what_a_folder_lacks_is_one_sentence(folder: Path, what: str) -> None:
    spoil, reason = SPOILT[what]
    spoil(folder)
    for problems in (policy_problems(str(folder), trained=True), acting_problems(str(folder))):
        (text,) = [problem.text for problem in problems]
        assert reason in text
        assert str(folder) in text
        assert "\n" not in text


@pytest.mark.parametrize("what", ["another architecture", "one layer more", "another width"])
def test_f22_no_weight_is_left_to_chance_where_a_model_is_loaded(folder: Path, what: str) -> None:
    spoil, reason = SPOILT[what]
    spoil(folder)
    with pytest.raises(ConfigError) as caught:
        load_model(folder)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["no template", "weights that are cut", "one layer more"])
def test_b2_dry_run_refuses_what_the_run_refuses_and_neither_makes_a_folder(
    folder: Path, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, reason = SPOILT[what]
    spoil(folder)
    run = tmp_path / "run"
    words = ["train", "math/arithmetic", "--policy", str(folder), f"run_dir={run}"]
    for more in (["--dry-run"], []):
        assert main([*words, *more]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert reason in line
    assert not run.exists()


@pytest.mark.parametrize(
    ("chat", "template", "line"),
    [
        (Fixture.CHATML, None, None),
        (Fixture.DROPS_THINK, None, "the chat template opens every turn with '<think>'; "),
        (
            Fixture.CHATML,
            "{% if enable_thinking is defined %}{% endif %}",
            "left to the model by the chat template, whose 'enable_thinking' is not set; ",
        ),
    ],
)
def test_f23_dry_run_tells_what_the_template_does_with_reasoning(
    tmp_path: Path, chat: Fixture, template: str | None, line: str | None
) -> None:
    folder = build_tiny(tmp_path / "model", chat=fixture_format(chat), seed=2)
    if template is not None:
        path = folder / "chat_template.jinja"
        path.write_text(template + path.read_text())
    config = RunConfig(policy=str(folder), envs=(EnvSource(name="math/arithmetic"),))
    found = {one.name: one.value for one in implications(config)}
    wanted = None if line is None else line + "it counts as sampled tokens"
    assert found.get("reasoning") == wanted


# --------------------------------------------------------------------------- Hugging Face's cache


def test_b3_id_of_a_downloaded_model_is_its_folder(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "hub" / "models--Org--Some-1.5B"
    shutil.copytree(tiny, place / "snapshots" / "abc")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc\n")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert find_cached("Org/Some-1.5B") == place / "snapshots" / "abc"
    assert read_policy("Org/Some-1.5B").folder == place / "snapshots" / "abc"
    assert list(policy_problems("Org/Some-1.5B", trained=True)) == []
    (place / "refs" / "main").write_text("def")
    assert find_cached("Org/Some-1.5B") is None


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HF_HUB_CACHE": "a/hub"}, "a/hub"),
        ({"HF_HOME": "b"}, "b/hub"),
        ({"XDG_CACHE_HOME": "c"}, "c/huggingface/hub"),
        ({"HOME": "d"}, "d/.cache/huggingface/hub"),
    ],
)
def test_b3_cache_is_where_hugging_face_has_it(
    variables: dict[str, str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    model = tmp_path / place / "models--o--m"
    (model / "snapshots" / "1").mkdir(parents=True)
    (model / "snapshots" / "1" / "config.json").write_text("{}")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("1")
    assert find_cached("o/m") == model / "snapshots" / "1"


def test_b3_id_that_is_not_there_is_told_with_the_command_that_downloads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (text,) = [p.text for p in policy_problems("Org/Model-0.5B", trained=True)]
    assert text.startswith("unknown policy 'Org/Model-0.5B'")
    assert text.endswith("must be downloaded first: hf download Org/Model-0.5B")
    (other,) = [p.text for p in policy_problems("smollm", trained=True)]
    assert "hf download" not in other
