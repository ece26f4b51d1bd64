"""`agentgym init` makes a package that works at once."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import agentgym
from agentgym.cli.main import main
from agentgym.env.registry import register_env, unregister_env


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "first_envs"]) == 0
    return tmp_path / "first_envs"


def test_scaffold_has_entry_point_environment_and_test(package: Path) -> None:
    about = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))
    assert about["project"]["entry-points"]["agentgym.envs"] == {
        "first_envs/backwards-v0": "first_envs.env:BackwardsEnv"
    }
    assert (package / "tests" / "test_env.py").is_file()
    for file in package.rglob("*.py"):
        ast.parse(file.read_text(encoding="utf-8"))


def test_environment_is_at_most_12_lines_of_code(package: Path) -> None:
    text = (package / "first_envs" / "env.py").read_text(encoding="utf-8")
    code = [line for line in text.splitlines()[1:] if line.strip()]
    assert len(code) <= 12, code


def test_scaffolded_environment_is_solved_by_its_expert(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    env_class = importlib.import_module("first_envs.env").BackwardsEnv
    register_env("first_envs/backwards-v0")(env_class)
    try:
        episodes = agentgym.rollout("first_envs/backwards-v0", "expert", tasks=4)
        assert [episode.outcome for episode in episodes] == [1.0] * 4
        agentgym.check_env("first_envs/backwards-v0")
    finally:
        unregister_env("first_envs/backwards-v0")
        sys.modules.pop("first_envs.env")
        sys.modules.pop("first_envs")


def test_existing_folder_is_left_alone(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (package / "pyproject.toml").read_bytes()
    assert main(["init", "first_envs"]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert (package / "pyproject.toml").read_bytes() == before


@pytest.mark.parametrize("name", ["class", "9x", "A", "a-b", "a/b", ""])
def test_name_that_is_no_package_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", name]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_installed_scaffold_is_found_by_its_entry_point(package: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    flags = ["--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([*command, str(target), *flags, str(package)], check=True)
    result = subprocess.run(
        [sys.executable, "-m", "agentgym.cli.main", "envs", "show", "first_envs/backwards-v0"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(target), "PATH": ""},
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert "Write the word backwards" in result.stdout
