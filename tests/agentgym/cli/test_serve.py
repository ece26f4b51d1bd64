"""`agentgym serve` looks at its options before it starts anything."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra train")

from agentgym.cli.main import main
from agentgym.trainers.models.tiny import build_tiny


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-n", "0"], "'-n': Input should be greater than or equal to 1 (got '0')"),
        (["--port", "99999999"], "'--port': Input should be less than or equal to 65535"),
        (["--port", "-1"], "'--port': Input should be greater than or equal to 1 (got '-1')"),
        (["--port", "65535", "-n", "2"], "'--port' must be at most 65534 (got 65535)"),
        (["--python", "/nope"], "'--python' must be an interpreter that has vLLM (got '/nope'"),
        (["--gpu-memory", "7"], "'--gpu-memory': Input should be less than or equal to 1"),
        (["--lora-rank", "-1"], "'--lora-rank': Input should be greater than or equal to 0"),
        (["--context", "0"], "'--context': Input should be greater than or equal to 1"),
        (["--device", "gpu"], "'--device' must be one of ['cpu', 'cuda'] (got 'gpu')"),
        (["--python", "{tmp}/without"], "which '{tmp}/without' has not: pip install"),
        (["--python", "{tmp}/with", "--logs", "{tmp}/full/x"], "'--logs' must be a folder"),
    ],
)
def test_wrong_option_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    (tmp_path / "full").write_text("a file", encoding="utf-8")
    # Interpreters by their answer to the question whether vLLM is there.
    for name, code in (("with", 0), ("without", 1)):
        (tmp_path / name).write_text(f"#!{sys.executable}\nraise SystemExit({code})\n")
        (tmp_path / name).chmod(stat.S_IRWXU)
    given = [word.replace("{tmp}", str(tmp_path)) for word in options]
    assert main(["serve", str(build_tiny(tmp_path / "model")), *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words.replace("{tmp}", str(tmp_path)) in line
