"""The folder of a run: everything that the run learned.

config.yaml          every setting, secrets redacted
metrics.jsonl        one line a training step
trajectories.jsonl   every episode; scores.jsonl: what scorers say of them
evaluations/         one JSON file each
checkpoints/         state for --resume; policy/: the weights as a transformers folder
curves.png, .svg     report.md
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from agentgym.config.loading import load_config
from agentgym.config.schema import RunConfig
from agentgym.config.yaml_files import read_file
from agentgym.errors import ConfigError, RecordError
from agentgym.files.plain_yaml import dump_yaml
from agentgym.records import Score, Trajectory, serialization
from agentgym.redaction import masked_tree, redact
from agentgym.runs.json_files import parse_json, read_json
from agentgym.runs.jsonl import DiskError, LineWriter, read_lines

RUNS = Path("runs")
CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"
STATE_FILE = "state.json"
"""Where the loop stood, in the folder of a checkpoint."""
STREAMS = ("metrics", "trajectories", "scores")
BASE = "base"
"""Folder in a run's: a new model as it was built, which is built again in seconds."""
LIVE_FILE = "live.json"
"""What a run does now."""
T = TypeVar("T", Trajectory, Score)
_LONGEST_NAME = 100
"""Characters; file systems take 255 bytes, and numbers and endings come on top."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_CHECKPOINT = re.compile(r"step_(\d{6,})")


class RunFolder:
    """One run's folder, open for writing.

    Use `create` for a new run, `open` to go on with one; both take the folder's lock, which the
    operating system gives back when the process ends, however it ends.

    Example:
        with RunFolder.create(Path("runs/first"), config) as folder:
            folder.append_metrics({"step": 0, "outcome": 0.25})
    """

    def __init__(self, path: Path, config: RunConfig, *, is_writer: bool = True) -> None:
        self.path = path
        self.config = config
        self._lock = _take_lock(path) if is_writer else -1
        names = STREAMS if is_writer else ()
        self._writers = {name: LineWriter(path / f"{name}.jsonl") for name in names}

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> Self:
        """Make the folder of a new run and write its config.

        Raises:
            ConfigError: If the folder holds a run, or anything else.
            DiskError: If it cannot be made.
        """
        refuse_used(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder = cls(path, config)
            folder.write_text(CONFIG, dump_yaml(redact(config.to_dict())))
        except OSError as error:
            raise DiskError(f"the run folder {path} cannot be made ({error.strerror})") from error
        return folder

    @classmethod
    def follow(cls, path: Path, config: RunConfig) -> Self:
        """Return the folder of a run that another process writes: paths only, no lock."""
        return cls(path, config, is_writer=False)

    @classmethod
    def open(cls, path: Path, config: RunConfig | None = None) -> Self:
        """Open the folder of an existing run; `config` replaces the stored one.

        Raises:
            ConfigError: If it holds no run.
        """
        stored = read_config(path)
        folder = cls(path, config if config is not None else stored)
        if config is not None and config != stored:
            folder.write_text(CONFIG, dump_yaml(redact(config.to_dict())))
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.path / CHECKPOINTS

    @property
    def policy(self) -> Path:
        """Where the trained weights lie, as a transformers folder."""
        return self.path / "policy"

    def append_metrics(self, metrics: Mapping[str, float | int | str | None]) -> None:
        """Write the metrics of one step. NaN and infinity are written as null."""
        finite = {key: _finite(value) for key, value in metrics.items()}
        self._writers["metrics"].append(json.dumps(masked_tree(finite), separators=(",", ":")))

    def append_trajectory(self, trajectory: Trajectory) -> None:
        """Write one episode."""
        self._writers["trajectories"].append(serialization.dumps(trajectory))

    def append_score(self, score: Score) -> None:
        """Write what a scorer says of an episode."""
        self._writers["scores"].append(serialization.dumps(score))

    def offsets(self) -> dict[str, int]:
        """Return the length of each stream in bytes, on disk: what a checkpoint remembers."""
        return {name: writer.offset() for name, writer in self._writers.items()}

    def truncate_to(self, offsets: Mapping[str, int]) -> None:
        """Cut each stream to what a checkpoint remembers; what came after is run again.

        Raises:
            RecordError: If a stream is shorter than that, or `offsets` names another one.
        """
        if set(offsets) != set(STREAMS):
            raise RecordError(f"offsets must name {', '.join(STREAMS)} (got {sorted(offsets)!r})")
        for name, offset in offsets.items():
            self._writers[name].truncate_to(offset)

    def write_evaluation(self, name: str, result: Mapping[str, Any]) -> Path:
        """Write the result of an evaluation, whole or not at all, and return its path."""
        text = json.dumps(masked_tree(result), indent=2, allow_nan=False)
        return self.write_text(f"evaluations/{file_name(name)}.json", text + "\n")

    def write_text(self, name: str, text: str) -> Path:
        """Write a file of the folder, whole or not at all, and return its path."""
        return write_atomic(self.path / name, text)

    @property
    def has_work(self) -> bool:
        """Whether the run has left anything that it could go on from, or that a person may read."""
        files = [self.path / f"{name}.jsonl" for name in STREAMS]
        if any(file.is_file() and file.stat().st_size for file in files):
            return True
        bare = {CONFIG, LOCK, BASE, LIVE_FILE, *(f"{name}.jsonl" for name in STREAMS)}
        return any(entry.name not in bare for entry in self.path.iterdir())

    def remove(self) -> None:
        """Take the folder away, and the folders above it that are empty then."""
        self.close()
        shutil.rmtree(self.path)
        with suppress(OSError):  # there are other runs in it
            self.path.parent.rmdir()

    def close(self) -> None:
        """Close every file and give the lock back. May be called more than once."""
        for writer in self._writers.values():
            writer.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


# ---------------------------------------------------------------------------- without a lock


def read_config(path: Path) -> RunConfig:
    """Return the config of the run in a folder.

    Raises:
        ConfigError: If it holds no run, or its config cannot be read.
    """
    if not (path / CONFIG).is_file():
        raise ConfigError(f"{path} is no run folder: it has no {CONFIG}{_near_runs(path)}")
    # What was run is not judged again: a config made in Python need not pass the loader's advice.
    return load_config(file=path / CONFIG, is_training=False)


def stored_settings(path: Path) -> Mapping[str, Any]:
    """Return the config of a run as it is written, secrets redacted."""
    return read_file(path / CONFIG).tree


def refuse_used(path: Path) -> None:
    """Raise where a new run would touch what is already in a folder.

    Raises:
        ConfigError: If `path` is a file or a folder that is not empty.
    """
    if (path / CONFIG).exists():
        raise ConfigError(
            f"{path} holds a run already; give another 'run_dir', or go on with it: "
            f"agentgym train --resume {path}"
        )
    # A lock alone is left over from a start that failed.
    if path.exists() and (not path.is_dir() or any(f.name != LOCK for f in path.iterdir())):
        raise ConfigError(f"{path} exists and is not an empty folder; give another 'run_dir'")


def next_free(name: str, runs: Path = RUNS) -> Path:
    """Return the first folder `runs/NAME-N` that is not there, with N from 1."""
    stem, number = file_name(name), 1
    while (runs / f"{stem}-{number}").exists():
        number += 1
    return runs / f"{stem}-{number}"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run's steps, a step that was run twice once (the later one).

    Raises:
        RecordError: If a line is no mapping in JSON.
    """
    rows: dict[Any, dict[str, Any]] = {}
    for number, line in enumerate(read_lines(path / "metrics.jsonl"), 1):
        place = f"{path / 'metrics.jsonl'}:{number}"
        row = parse_json(line, place)
        step = row.get("step", number)
        if not isinstance(step, int | float):
            raise RecordError(f"{place}: 'step' must be a number (got {step!r})")
        rows[step] = row
    return list(rows.values())


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the episodes of a run.

    Raises:
        RecordError: If a line is no trajectory.
    """
    yield from _records(path / "trajectories.jsonl", Trajectory)


def read_scores(path: Path) -> Iterator[Score]:
    """Yield the scores of a run.

    Raises:
        RecordError: If a line is no score.
    """
    yield from _records(path / "scores.jsonl", Score)


def _records(path: Path, kind: type[T]) -> Iterator[T]:
    for number, line in enumerate(read_lines(path), 1):
        try:
            record = serialization.loads(line)
        except RecordError as error:
            raise RecordError(f"{path}:{number}: {error}") from error
        if not isinstance(record, kind):
            raise RecordError(f"{path}:{number} is no {kind.__name__}")
        yield record


def read_evaluations(path: Path) -> dict[str, dict[str, Any]]:
    """Return the results of a run's evaluations by name, in the order of their training steps.

    Raises:
        RecordError: If one of the files is no evaluation.
    """
    found = {file.stem: read_evaluation(file) for file in evaluation_files(path)}
    return dict(sorted(found.items(), key=lambda item: item[1].get("step") or 0))


def checkpoint_step(path: Path) -> int | None:
    """Return the step that a checkpoint's folder is named after; None if it is named otherwise."""
    match = _CHECKPOINT.fullmatch(path.name)
    return int(match[1]) if match else None


def checkpoint_folders(path: Path) -> dict[int, Path]:
    """Return step -> folder of what lies in a folder of checkpoints, oldest first, whole or not."""
    entries = path.iterdir() if path.is_dir() else ()
    found = {step: e for e in entries if (step := checkpoint_step(e)) is not None}
    return dict(sorted(found.items()))


def evaluation_files(path: Path) -> list[Path]:
    """Return the files of a run's evaluations."""
    return sorted((path / "evaluations").glob("*.json"))


def read_evaluation(file: Path) -> dict[str, Any]:
    """Return the result of one evaluation as plain data.

    Raises:
        RecordError: If the file holds none.
    """
    tree = read_json(file)
    interval = tree.get("outcome")
    if not isinstance(interval, dict) or not {"mean", "low", "high"} <= interval.keys():
        raise RecordError(f"{file} is no evaluation: it needs 'outcome' with mean, low and high")
    if not isinstance(tree.get("step"), int | None):
        raise RecordError(f"{file} is no evaluation: 'step' is {tree['step']!r}")
    return tree


def write_atomic(path: Path, text: str) -> Path:
    """Write a file whole or not at all, and return its path.

    Raises:
        DiskError: If it cannot be written.
    """
    temporary = temporary_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise DiskError(f"{path} cannot be written ({error.strerror})") from error
    finally:
        with suppress(OSError):  # what went wrong before says more
            temporary.unlink(missing_ok=True)
    return path


def temporary_of(path: Path) -> Path:
    """Return the hidden file beside `path` that it is written to before it has its name."""
    return path.with_name(f".{path.name}.tmp")


def file_name(text: str) -> str:
    """Return `text` as a file name: every other character than letters, digits, `._-` is a dash.

    A long text is cut, and told from others that begin alike by a hash of all of it.
    """
    name = _UNSAFE.sub("-", text).strip("-.") or "run"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - 9]}-{digest}"


def _finite(value: float | str | None) -> float | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _take_lock(path: Path) -> int:
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(f"another process is writing in {path}; wait for it or end it") from None
    return lock


def _near_runs(path: Path) -> str:
    known = sorted(str(file.parent) for file in path.parent.glob(f"*/{CONFIG}"))
    return f"; runs beside it: {', '.join(known[-3:])}" if known else ""
