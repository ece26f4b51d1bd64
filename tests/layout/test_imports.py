"""What an import may load. The contracts between packages are import-linter's (pyproject.toml)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "vllm", "peft", "safetensors", "matplotlib", "jaxtyping")


def _modules_loaded_by(statement: str) -> set[str]:
    """Return the names in `sys.modules` of a fresh interpreter after `statement`."""
    code = f"import sys; {statement}; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "tests"
    )
    return set(result.stdout.split())


@pytest.mark.parametrize("module", ["agentgym", "agentgym.cli.main", "agentgym.config"])
def test_import_of_the_core_loads_nothing_heavy(module: str) -> None:
    loaded = _modules_loaded_by(f"import {module}")
    assert module in loaded
    assert loaded & set(HEAVY) == set()


def test_import_of_the_core_loads_no_part() -> None:
    loaded = _modules_loaded_by("import agentgym")
    parts = {"agentgym.sandbox", "agentgym.tasks", "agentgym.trainers"}
    assert loaded & parts == set()
    # The table of ids is strings, which Gymnasium is told; no environment is imported.
    assert [name for name in loaded if name.startswith("agentgym.envs.")] == []


def test_every_core_module_but_the_heavy_ones_imports_without_torch() -> None:
    heavy = (
        "agentgym.policies.transformers",
        "agentgym.policies.vllm.inprocess",
        "agentgym.policies.vllm.inprocess_control",
        "agentgym.renderer.hf_tokenizer",
    )
    names: list[str] = []
    for path in sorted((ROOT / "agentgym").rglob("*.py")):
        relative = path.relative_to(ROOT)
        if "scaffold" in str(relative) or relative.name == "__main__.py":
            continue
        name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        part = name.split(".")[1] if "." in name else ""
        is_heavy = any(name == module or name.startswith(f"{module}.") for module in heavy)
        if part not in {"envs", "sandbox", "tasks", "trainers"} and not is_heavy:
            names.append(name)
    loaded = _modules_loaded_by("import " + ", ".join(names))
    assert set(names) <= loaded
    assert loaded & {"torch", "transformers", "vllm"} == set()


def test_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
