"""`agentgym init` writes a package that works: its entry point, its environment, its own test."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.cli.scaffolding import init
from agentgym.errors import ConfigError

NAME = "my_envs"


@pytest.fixture(params=[False, True], ids=["text", "tools"])
def package(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a new package, laid out as pip would install it."""
    folder = tmp_path / NAME
    init(NAME, folder, tools=request.param)
    info = folder / f"{NAME}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0.1.0\n")
    # What a build backend makes of the table in pyproject.toml.
    points = (
        (folder / "pyproject.toml").read_text().split('[project.entry-points."agentgym.envs"]\n')
    )
    line = points[1].splitlines()[0].replace('"', "")
    (info / "entry_points.txt").write_text(f"[agentgym.envs]\n{line}\n")
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(folder)!r}); " + arguments[0],
    ]
    return subprocess.run(code, capture_output=True, text=True, check=False, cwd=folder)


def test_user_code_takes_twelve_lines(tmp_path: Path) -> None:
    init(NAME, tmp_path / NAME)
    source = (tmp_path / NAME / NAME / "env.py").read_text()
    docs = {
        node.body[0].lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node)
    }
    lines = [n for n, line in enumerate(source.splitlines(), 1) if line.strip() and n not in docs]
    assert len(lines) <= 12


def test_environment_is_found_and_keeps_the_contract(package: Path) -> None:
    env_id = (package / "tests" / "test_env.py").read_text().split('ENV = "')[1].split('"')[0]
    done = run(
        package,
        f"import agentgym; report = agentgym.check_env('{env_id}'); print(report); "
        "report.raise_if_failed(); print('kept')",
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.endswith("kept\n")
    assert "expert: 1.000" in done.stdout


def test_its_own_test_passes(package: Path) -> None:
    done = run(
        package,
        "import pytest; raise SystemExit(pytest.main(['-q', '-p', 'no:cacheprovider', 'tests']))",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("name", ["My", "my-envs", "class", "", "1a", "a b"])
def test_bad_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a package's name"):
        init(name, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_full_folder_is_refused(package: Path) -> None:
    with pytest.raises(ConfigError, match="not an empty folder"):
        init(NAME, package)
