"""Tasks of reasoning-gym: made and scored in a pool of processes (`reasoning_worker`).

An item is identified by its number. Whether it is held out depends on its question alone, so that
no question stands in both splits; each task looks for its item in a block of numbers of its own.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import json
import re
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from agentgym.envs import splits
from agentgym.envs.math.processes import Ending, ProcessPool
from agentgym.errors import EnvError, InfrastructureError, MissingExtraError, nearest
from agentgym.records import Json, Task
from agentgym.records.task import canonical_json

ENV_ID = "math/reasoning-v0"
SPLITS = splits.SPLITS
SIZE = 2**20
"""Tasks of a split."""
HELD_OUT_SHARE = 8
"""One question in so many is held out."""
UNUSABLE = {
    "composite": "it mixes other data sets and has none of its own: give several names instead",
}
"""Data sets that cannot be used, with the reason."""

_MODULE = "agentgym.envs.math.reasoning.worker"
_BLOCK = 64
"""Numbers of one task's block: none of them is held out once in 5,000 blocks."""
_MAX_NUMBER = 2**31
_MAX_TRIES = 1024
_TOLD_IN_WORDS = frozenset({"gsm_symbolic"})
"""Data sets whose question is the same problem when it is told with other names and things."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
SCORE_TIMEOUT_S = 5.0
"""Processor time of one score; an answer that takes longer is wrong."""
_MAKE_TIMEOUT_S = 120.0
MAX_ANSWER_CHARS = 20_000


def generate_task(
    index: int,
    *,
    split: str = "train",
    datasets: Sequence[str] = ("gsm_symbolic",),
    settings: Mapping[str, Json] | None = None,
) -> Task:
    """Return task number `index` of a split; the data sets take turns.

    Args:
        index: Position from 0.
        split: `train` or `held_out`.
        datasets: Names of data sets.
        settings: As `check_datasets` takes them.

    Raises:
        EnvError: If the split, the index, a name or a setting is not one.
        InfrastructureError: If no item is made in time.
    """
    splits.check_request(index, split)
    check_datasets(datasets, settings or {})
    name = datasets[index % len(datasets)]
    own = _settings_of(name, datasets, settings or {})
    position = index // len(datasets)
    for attempt in range(_MAX_TRIES):
        number = (position * _BLOCK + attempt) % _MAX_NUMBER
        item = _item(name, canonical_json(own), number)
        if _is_held_out(name, item) == (split == "held_out"):
            return _task(item, f"{name}-{split}-{position:06d}", name, own, split)
    raise EnvError(f"{name} makes too few different questions to hold some out")


def score(task: Task, answer: str) -> float:
    """Return what the library gives for `answer`, in [0, 1]; 0 where scoring takes too long.

    Raises:
        EnvError: If the task is no puzzle.
        InfrastructureError: If the library cannot be asked.
    """
    if not {"dataset", "settings", "entry"} <= task.payload.keys():
        raise EnvError(f"task {task.id!r}: the payload needs 'dataset', 'settings' and 'entry'")
    entry = dict(cast("Mapping[str, Json]", task.payload["entry"]))
    request = {
        "op": "score",
        "dataset": task.payload["dataset"],
        "settings": task.payload["settings"],
        "entry": {**entry, "question": task.prompt},
        "answer": answer[:MAX_ANSWER_CHARS],
    }
    outcome = _pool().ask(request, timeout_s=SCORE_TIMEOUT_S)
    # A scorer that fails on what the agent wrote was given something that is no answer.
    result = outcome.reply.get("result", 0.0) if outcome.ending is Ending.ANSWERED else 0.0
    return min(max(float(result), 0.0), 1.0)


def dataset_names() -> tuple[str, ...]:
    """Return the names of all data sets that can be used, sorted."""
    return tuple(name for name in _request({"op": "names"}) if name not in UNUSABLE)


def check_datasets(datasets: Sequence[str], settings: Mapping[str, Json]) -> None:
    """Return if the library knows the data sets and takes their settings.

    Args:
        datasets: Names.
        settings: Settings of a single data set; of several: name -> settings.

    Raises:
        EnvError: If not; the message has the library's reason.
    """
    if not datasets:
        raise EnvError("'dataset' must be a name or several (got none)")
    if len(datasets) > 1:
        strange = sorted(settings.keys() - set(datasets))
        if strange or not all(isinstance(own, Mapping) for own in settings.values()):
            raise EnvError(
                "'settings' of several data sets must be name -> settings "
                f"(got {dict(settings)!r} for {', '.join(datasets)})"
            )
    for name in datasets:
        if name in UNUSABLE:
            raise EnvError(f"the data set {name!r} cannot be used: {UNUSABLE[name]}")
        problem = _problem(name, canonical_json(_settings_of(name, datasets, settings)))
        if problem is not None:
            raise EnvError(problem)


def _settings_of(
    name: str, datasets: Sequence[str], settings: Mapping[str, Json]
) -> dict[str, Json]:
    own = settings if len(datasets) == 1 else settings.get(name, {})
    return dict(cast("Mapping[str, Json]", own))


@lru_cache(maxsize=1024)
def _problem(name: str, settings: str) -> str | None:
    names = _request({"op": "names"})
    if name not in names:
        return f"unknown data set {name!r}{nearest(name, names)}; reasoning-gym has {len(names)}"
    outcome = _pool().ask({"op": "check", "dataset": name, "settings": json.loads(settings)})
    error = outcome.reply.get("error")
    return None if error is None else f"{name} refuses the settings {settings}: {error}"


def _item(name: str, settings: str, number: int) -> dict[str, Any]:
    request = {
        "op": "generate",
        "dataset": name,
        "settings": json.loads(settings),
        "number": number,
    }
    return _request(request)


def _request(request: dict[str, Any]) -> Any:
    outcome = _pool().ask(request)
    if "result" not in outcome.reply:
        reason = outcome.reply.get("error", outcome.ending.value)
        raise InfrastructureError(f"reasoning-gym: {request}: {reason}")
    return outcome.reply["result"]


def _is_held_out(name: str, item: Mapping[str, Any]) -> bool:
    question = str(item["entry"]["question"])
    if name in _TOLD_IN_WORDS:
        # The numbers with the answer, whoever it is about and whatever is counted.
        question = " ".join([*sorted(_NUMBER.findall(question)), str(item["gold"])])
    text = " ".join(question.casefold().split())
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_SHARE == 0


def _task(
    item: dict[str, Any], task_id: str, name: str, settings: dict[str, Json], split: str
) -> Task:
    entry = dict(item["entry"])
    question = str(entry.pop("question"))
    return Task(
        id=task_id,
        env_id=ENV_ID,
        prompt=question,
        answers=(item["gold"],) if item["gold"] is not None else (),
        payload={"dataset": name, "settings": settings, "entry": entry},
        tags=(name,),
        split=split,
    )


_lock = threading.Lock()
_pools: list[ProcessPool] = []


def _pool() -> ProcessPool:
    """Return the pool that all environments of this process share."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise MissingExtraError(ENV_ID, extra="math")
    with _lock:
        if not _pools:
            _pools.append(ProcessPool(_MODULE, size=2, timeout_s=_MAKE_TIMEOUT_S))
            atexit.register(_pools[0].close)
        return _pools[0]


def close_pool() -> None:
    """End the idle processes; a later request starts them anew."""
    with _lock:
        for pool in _pools:
            pool.close()
