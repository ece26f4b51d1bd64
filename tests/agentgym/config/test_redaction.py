"""Secrets stay out of what is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.config import EnvSource, RunConfig
from agentgym.config.redaction import REDACTED, redact
from agentgym.runs import RunFolder


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
