"""The wheel and the sdist hold the package, all of its data and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("envs", "sandbox", "tasks", "trainers")
FOLDERS = ("agentgym", *PARTS)


def _run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def _source_files() -> Iterator[str]:
    """Yield the tracked files of the five folders; without git, all but caches."""
    if (ROOT / ".git").exists():
        listed = _run("git", "ls-files", *FOLDERS, cwd=ROOT).splitlines()
        yield from (name for name in listed if (ROOT / name).is_file())
        return
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both archives with the backend in this environment: no isolation, so no network."""
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "hatchling", "build", "-d", str(folder), cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


def _in_wheel(name: str) -> str:
    return name if name.startswith("agentgym/") else f"agentgym/{name}"


def test_wheel_has_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"agentgym"}


def test_wheel_holds_every_tracked_file_once(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    missing = {_in_wheel(name) for name in _source_files()} - set(names)
    assert missing == set()


def test_wheel_holds_the_data_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "agentgym/py.typed" in names
    assert any(name.startswith("agentgym/trainers/presets/") for name in names)
    assert any(name.endswith(".jinja") for name in names)
    assert "agentgym/sandbox/images/python/Dockerfile" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_wheel_declares_the_command_and_no_torch_in_the_core(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        (scripts,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        requires = archive.read(metadata).decode()
        assert "agentgym = agentgym.cli.main:main" in archive.read(scripts).decode()
    core = {
        line.removeprefix("Requires-Dist: ").lower()
        for line in requires.splitlines()
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    }
    assert any(line.startswith("gymnasium") for line in core)
    assert not any(line.startswith(("torch", "transformers", "vllm")) for line in core)


def test_sdist_holds_the_sources_and_builds_the_same_wheel(
    built: Path, wheel: Path, tmp_path: Path
) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    missing = {name for name in _source_files() if not (source / name).is_file()}
    assert missing == set()
    assert not (source / "agentgym" / "envs").exists(), "a link was followed into the sdist"
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=source)
    (again,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(again) as first, zipfile.ZipFile(wheel) as second:
        assert set(first.namelist()) == set(second.namelist())


EPISODE = """
import sys
import agentgym

env = agentgym.make("math/arithmetic-v0")
observation, info = env.reset(seed=7)
truncated = terminated = False
for _ in range(20):
    *_, terminated, truncated, info = env.step("<answer>0</answer>")
    if terminated or truncated:
        break
env.close()
assert terminated or truncated
assert "torch" not in sys.modules
print(agentgym.__file__)
"""


def test_one_episode_runs_from_the_unpacked_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # PYTHONPATH comes before the editable install of this repository.
    output = _run(
        sys.executable, "-P", "-c", EPISODE, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}
    )
    assert Path(output.strip()).is_relative_to(tmp_path)
