"""vLLM's engine in the process of the run, on a CPU in float32.

It is driven by a script in vLLM's own environment, whose pins are not the project's. One start of
the engine serves all tests: each reads what the script found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "inprocess_vllm.py"
PYTHON = Path(os.environ.get("AGENTGYM_VLLM_ENV", ROOT / ".vllm")) / "bin" / "python"

pytestmark = [
    pytest.mark.service,
    pytest.mark.timeout(1_000),
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no vLLM environment at {PYTHON}"),
]


@pytest.fixture(scope="module")
def found(telling_tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scratch = tmp_path_factory.mktemp("inprocess")
    site = sysconfig.get_path("purelib")
    done = subprocess.run(
        [PYTHON, SCRIPT, telling_tiny, scratch, site],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stdout[-3_000:]
    assert lines, done.stdout[-3_000:]
    return json.loads(lines[-1])


def test_it_keeps_the_contract_of_policies(found: dict[str, Any]) -> None:
    assert found["problems"] == []


def test_stored_logprobs_are_the_learners(found: dict[str, Any]) -> None:
    assert found["at_start"] <= 1e-3


def test_weights_change_under_live_episodes(found: dict[str, Any]) -> None:
    change = found["folder"]
    assert change["versions"] == [0, 1]
    assert change["failures"] == 0
    assert change["proved"] <= 1e-2
    assert change["after"] <= 1e-3


def test_shared_tensors_are_copied_over_the_engines_own(found: dict[str, Any]) -> None:
    assert found["copied"] <= 1e-3


def test_a_cancelled_call_leaves_the_engine(found: dict[str, Any]) -> None:
    assert found["running_after_cancel"] == 0


def test_a_prompt_without_ids_is_refused(found: dict[str, Any]) -> None:
    assert "at least one prompt id" in found["refused"]


def test_a_run_trains_on_the_engine_in_its_process(found: dict[str, Any]) -> None:
    run = found["train"]
    assert run["steps"] == [1, 2]
    assert run["off"] <= 1e-3
    assert run["versions"][:2] == [0, 1]
    assert run["is_scored"]
