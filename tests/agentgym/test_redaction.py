"""Secrets stay out of what is written and shown, whoever says them.

Class: *redaction at one door*. Settings are hidden by name, and their values wherever they turn up.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from agentgym.cli.output import complain, print_json, print_table, say
from agentgym.config import EnvSource, RunConfig, load_config
from agentgym.env import registry
from agentgym.errors import PolicyError
from agentgym.policies.base import GenerateRequest
from agentgym.policies.openai_compatible import OpenAICompatiblePolicy
from agentgym.records import Completion, Sampling, Trajectory, Turn
from agentgym.records.escape import plain
from agentgym.redaction import REDACTED, masked, masked_tree, redact, remember
from agentgym.runs import RunFolder
from agentgym.runs.folder import read_trajectories
from agentgym.runs.progress import Lines


@pytest.mark.parametrize(
    "name",
    [
        *("api_key", "API_KEY", "apikey", "openai_api_key", "token", "access_token", "hf.token"),
        *("password", "db_passwd", "client_secret", "Authorization", "private_key"),
    ],
)
def test_value_under_a_telling_name_is_hidden(name: str) -> None:
    assert redact({name: "s3cret"}) == {name: REDACTED}
    assert redact({"outer": [{name: "s3cret"}]}) == {"outer": [{name: REDACTED}]}


@pytest.mark.parametrize(
    "tree",
    [
        {"max_tokens": 5, "micro_batch_tokens": 7, "max_new_tokens": 9, "tokenizer": "x"},
        {"keys": [1], "token": None, "password": ""},
    ],
)
def test_other_values_stay(tree: dict) -> None:
    assert redact(tree) == tree


def test_password_in_an_address_is_hidden() -> None:
    assert redact("vllm:https://me:pw@host:8000/v1") == f"vllm:https://{REDACTED}@host:8000/v1"
    assert redact("http://h/?api_key=abc&x=1") == f"http://h/?api_key={REDACTED}&x=1"
    assert redact("vllm:http://host:8000") == "vllm:http://host:8000"


def test_config_on_disk_holds_no_secret(tmp_path: Path) -> None:
    config = RunConfig(
        envs=(EnvSource(name="a/b-v0", kwargs={"api_key": "s3cret", "level": 2}),),
        policy="vllm:http://me:s3cret@host",
    )
    RunFolder.create(tmp_path / "run", config).close()
    written = "".join(
        file.read_text(encoding="utf-8") for file in (tmp_path / "run").iterdir() if file.is_file()
    )
    assert "s3cret" not in written
    assert "level: 2" in written


KEY = 'sk-live/42"é'
"""A key that JSON, `repr` and addresses each spell in their own way."""


def everything(run: Path) -> str:
    return "".join(file.read_text(encoding="utf-8") for file in run.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    "said",
    [
        KEY,
        f"Bearer {KEY}",
        json.dumps({"echo": KEY}),
        json.dumps({"echo": KEY}, ensure_ascii=False),
        repr(KEY),
        f"http://h/?q={quote(KEY, safe='')}",
    ],
)
def test_f18_a_secret_is_hidden_however_it_is_spelt(said: str) -> None:
    remember({"api_key": KEY})
    assert REDACTED in masked(said)
    assert "42" not in masked(said)


def test_f18_no_file_of_a_run_has_a_secret_of_its_settings(tmp_path: Path) -> None:
    config = load_config(
        settings={"envs": [{"name": "lab/weather-v0", "kwargs": {"api_key": KEY, "days": 3}}]}
    )
    echo = f"no entry for {KEY}"
    trajectory = Trajectory(
        id="e1",
        group_id="g1",
        task_id="t1",
        env_id="lab/weather-v0",
        env_kwargs={"api_key": KEY, "days": 3, "deep": [{"auth": (KEY,)}]},
        system_prompt=echo,
        initial_observation=echo,
        turns=(
            Turn(
                index=0,
                completion=Completion(text=echo),
                observation=echo,
                rewards={KEY: 0.5},
            ),
        ),
    )
    with RunFolder.create(tmp_path / "run", config) as folder:
        folder.append_trajectory(trajectory)
        folder.append_metrics({"step": 1, "note": echo, "outcome": 0.5})
        folder.write_evaluation("step-1", {"outcome": {"mean": 1.0}, "warnings": [echo]})
    text = everything(tmp_path / "run")
    (stored,) = read_trajectories(tmp_path / "run")
    # The name of a reward is a key: keys are not touched.
    assert stored.turns[0].rewards == {KEY: 0.5}
    assert stored.env_kwargs == {"api_key": REDACTED, "days": 3, "deep": [{"auth": (REDACTED,)}]}
    assert stored.initial_observation == f"no entry for {REDACTED}"
    assert text.replace(json.dumps({KEY: 0.5})[2:-6], "").count("sk-live") <= 1


def test_f18_numbers_and_keys_stay_as_they_are() -> None:
    remember({"token": "123456"})
    tree = {"123456": [123456, 0.5, None, True, "a 123456"]}
    assert masked_tree(tree) == {"123456": [123456, 0.5, None, True, f"a {REDACTED}"]}


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "vllm:http://me:hunter22@h:1"},
        {"policy": "vllm:http://h:1/?token=hunter22"},
        {"envs": [{"name": "a/b", "kwargs": {"deep": [{"db_password": "hunter22"}]}}]},
    ],
)
def test_f18_what_settings_hold_is_hidden_on_the_terminal(
    settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    load_config(settings=settings)
    say("the server says: hunter22 is wrong")
    complain("hunter22 is wrong")
    print_json({"detail": "hunter22", "rows": [("hunter22",)]})
    print_table(["what"], [["hunter22"]])
    Lines(sys.stderr).on_note("warning: hunter22")
    captured = capsys.readouterr()
    assert "hunter22" not in captured.out + captured.err
    assert captured.out.count(REDACTED) == 4
    assert captured.err.count(REDACTED) == 2


async def test_f18_a_server_that_repeats_the_key_shows_it_to_nobody() -> None:
    def echo(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401, text=f"bad key: {request.headers['Authorization']}")

    policy = OpenAICompatiblePolicy(
        "http://h/v1", model="m", api_key="sk-1234567", transport=httpx.MockTransport(echo)
    )
    request = GenerateRequest(
        episode_id="e", turn=0, messages=(), prompt_ids=None, sampling=Sampling()
    )
    with pytest.raises(PolicyError) as caught:
        await policy.generate(request)
    await policy.aclose()
    assert "sk-1234567" not in plain(str(caught.value))


def test_f18_an_environment_s_arguments_are_remembered_where_it_is_made() -> None:
    registry.make("math/arithmetic-v0").close()
    assert masked("hunter22") == "hunter22"
    with suppress(TypeError):
        registry.make("math/arithmetic-v0", api_key="hunter22")
    assert masked("hunter22") == REDACTED


def test_f18_short_words_and_marks_are_no_secrets() -> None:
    remember({"token": "yes", "end_token": "</answer>"})
    assert masked("yes</answer>") == "yes</answer>"
