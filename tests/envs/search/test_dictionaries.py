"""A real corpus: the 273,542 passages of Debian's dict-gcide and dict-wn."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from agentgym.env import registry
from agentgym.envs.search.corpus.dictd import DictdCorpus
from agentgym.envs.search.corpus.env import ENV_ID, Files, read_tasks

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

PACKAGES = ("dict-gcide", "dict-wn")
NAMES = ("gcide", "wn")
INSTALLED = Path("/usr/share/dictd")
# An entry of WordNet with one sense: "kick pleat n 1: pleat in back of a straight skirt".
_ONE_SENSE = re.compile(
    r"^(?P<word>.+?) (?:n|v|adj|adv) 1: (?P<gloss>[^\[\];\"]{40,}?)(?:[\[;\"]|$)"
)


@pytest.fixture(scope="module")
def dictionaries(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Stems of the two dictionaries, installed or unpacked from their packages."""
    folder = INSTALLED
    if not all((folder / f"{name}.index").is_file() for name in NAMES):
        if shutil.which("apt-get") is None:
            pytest.skip("neither the dictionaries nor apt-get are here")
        work = tmp_path_factory.mktemp("dictionaries")
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=work, check=True, timeout=300)
        for package in work.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(work)], check=True, timeout=300)
        folder = work / INSTALLED.relative_to("/")
    return [folder / name for name in NAMES]


def _rows(wordnet: Path) -> Iterator[dict[str, Any]]:
    """Yield questions for a word by its meaning."""
    for document in DictdCorpus((wordnet,)).documents():
        match = _ONE_SENSE.match(document.text)
        if match is None or match["word"] != document.title or " 2: " in document.text:
            continue
        if document.title.casefold() in match["gloss"].casefold():
            continue
        yield {
            "id": document.title,
            "question": f"Which word means: {match['gloss'].strip()}?",
            "answer": document.title,
            "answer_aliases": re.findall(r"\{([^{}]+)\}", document.text),
            "supporting_facts": [[document.title, 0]],
            "context": [[document.title, [document.text]]],
        }


def test_questions_about_dictionaries_are_answered_from_them(
    dictionaries: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))
    questions = tmp_path / "questions.jsonl"
    rows = list(islice((row for row in _rows(dictionaries[1])), 0, 30_000, 100))
    assert len(rows) > 200
    questions.write_text("\n".join(map(json.dumps, rows)))
    indexes = [stem.with_name(f"{stem.name}.index") for stem in dictionaries]
    env = registry.make(ENV_ID, questions=str(questions), corpus=[str(path) for path in indexes])
    tasks = read_tasks(Files(questions, tuple(indexes)))
    assert len(env.source_of(tasks[0]).documents) == 273_542
    found = 0
    for task in tasks[:60]:
        first, _ = env.reset(seed=0, options={"task": task})
        words = first.removeprefix("Which word means: ")
        results = env.step(env.protocol.format_call("search", {"query": words}))[0]
        found += f"] {task.answers[0]}: " in results
        info: dict[str, Any] = {}
        terminated = False
        while not terminated:
            _, _, terminated, _, info = env.step(env.expert())
        assert info["rewards"] == {"exact_match": 1.0, "f1": 1.0, "citation": 1.0, "opened": 1.0}
    # The meaning, as a query, finds its entry among 273,542 within five results.
    assert found >= 45
