"""The four links inside agentgym/ lead to the real folders, and nothing goes round them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("envs", "sandbox", "tasks", "trainers")


@pytest.mark.parametrize("part", PARTS)
def test_link_leads_to_the_real_folder(part: str) -> None:
    link = ROOT / "agentgym" / part
    assert link.is_dir(), (
        f"agentgym/{part} is no folder: git wrote the link as a text file. "
        "Fix: git config core.symlinks true && git checkout -- agentgym"
    )
    assert link.is_symlink()
    assert link.resolve() == (ROOT / part).resolve()
    # Relative, so that it holds in any clone.
    assert link.readlink() == Path("..") / part


@pytest.mark.parametrize("part", PARTS)
def test_bare_import_is_refused_with_the_right_name(part: str) -> None:
    # -P and cwd: the repository root must be on the path for `import envs` to find anything.
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {part}"
    result = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert f"ImportError: import agentgym.{part}, not {part}" in result.stderr


def test_every_folder_with_code_is_a_package() -> None:
    # A folder without __init__.py is invisible to the import contracts.
    bare = {
        str(module.parent.relative_to(ROOT))
        for part in ("agentgym", *PARTS)
        for module in (ROOT / part).rglob("*.py")
        if not (module.parent / "__init__.py").exists() and "__pycache__" not in module.parts
    }
    # Scaffolds are text for `agentgym init`, not modules.
    assert {
        folder for folder in bare if "scaffold" not in folder and "images" not in folder
    } == set()


def test_tests_folders_are_no_packages() -> None:
    # With --import-mode=importlib a test imports nothing of another test.
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_gitignore_hides_no_source() -> None:
    # `runs/` without a leading slash would hide agentgym/runs from git, and so from the wheel.
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "--others", "--ignored", "--exclude-standard", "--", "*.py"]
    folders = [f"{part}/" for part in ("agentgym", *PARTS, "tests", "examples")]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    hidden = [name for name in listed.splitlines() if name.startswith(tuple(folders))]
    assert hidden == []
