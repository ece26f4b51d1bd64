"""Every example of the README and the pages is run, with smaller numbers where it would be long."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)

# What makes a training example short; it changes no name and no structure.
SMALL = {
    "steps": "1",
    "rollout.groups_per_step": "2",
    "rollout.group_size": "2",
    "rollout.max_new_tokens": "12",
    "warmstart.steps": "2",
    "warmstart.warmup_steps": "1",
    "warmstart.demos": "8",
    "warmstart.batch_size": "4",
    "eval.tasks": "6",
    "eval.max_new_tokens": "12",
}


def blocks(page: Path, language: str) -> list[str]:
    return [
        code for name, code in BLOCK.findall(page.read_text(encoding="utf-8")) if name == language
    ]


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )


def test_readme_shows_python_and_commands() -> None:
    assert len(blocks(ROOT / "README.md", "python")) == 3
    assert all(len(code.splitlines()) <= 20 for code in blocks(ROOT / "README.md", "python"))


@pytest.mark.timeout(1200)
def test_readme_python_examples_run(tmp_path: Path) -> None:
    """All in one process, in the order of the page, with a small run for the training one."""
    small = ", ".join(f"{key.replace('.', '__')}={value}" for key, value in SMALL.items())
    code = "\n\n".join(blocks(ROOT / "README.md", "python"))
    assert code.count("steps=50)") == 1
    code = code.replace("steps=50)", f"{small})")
    code += (
        "\ndef act(request):\n"
        "    assert '<lookup>country</lookup>' in request.messages[0].content\n"
        "    if request.turn:\n"
        "        return f'<answer>{request.messages[-1].content}</answer>'\n"
        "    country = request.messages[1].content.rstrip('?').split()[-1]\n"
        "    return f'<lookup>{country}</lookup>'\n"
        "episode = agentgym.rollout('demo/capitals-v0', act)[0]\n"
        "assert episode.outcome == 1.0, episode\n"
        "assert result.success.mean == 1.0\n"
    )
    done = run([sys.executable, "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.timeout(1200)
def test_readme_commands_run(tmp_path: Path) -> None:
    """Train, look, go on, evaluate: in the order of the page, in one folder."""
    settings = [f"{key}={value}" for key, value in SMALL.items()]
    lines = [
        line.split("#")[0].split()
        for code in blocks(ROOT / "README.md", "")
        for line in code.splitlines()
        if line.startswith("agentgym ")
    ]
    assert [words[1] for words in lines] == ["train", "view", "train", "eval"]
    for words in lines:
        call = [sys.executable, "-m", "agentgym.cli.main", *words[1:]]
        if "--resume" in words:
            call += ["steps=2"]
        elif words[1] == "train":
            call += settings  # of a key given twice the last one counts
        elif words[1] == "eval":
            call = [word if word != "8" else "2" for word in call] + [
                "eval.tasks=4",
                "eval.max_new_tokens=12",
            ]
        done = run(call, tmp_path)
        assert done.returncode == 0, (words, done.stdout[-1500:], done.stderr[-1500:])
    assert (tmp_path / "runs/arithmetic-trloo-1/policy/model.safetensors").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_links_to_files_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []
