"""What an episode is about: `Task`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from agentgym.errors import RecordError

Json: TypeAlias = (
    "None | bool | int | float | str | list[Json] | dict[str, Json] | tuple[Json, ...]"
)


def canonical_json(value: object) -> str:
    """Return JSON text which is equal for equal values: keys sorted, no spaces, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem of one environment.

    Example:
        Task(id="arithmetic-2-000017", env_id="math/arithmetic-v0", prompt="37*48",
             answers=("1776",), payload={"expression": "37*48"})
    """

    id: str
    """Unique within its suite."""
    env_id: str
    """Registered id of the environment that can pose the task."""
    env_kwargs: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Arguments of the environment's constructor for this task."""
    prompt: str = ""
    """What the agent is asked; an environment may wrap it into its first observation."""
    answers: tuple[str, ...] = ()
    """Gold answers, any of which is right; graders and belief rewards read them, no agent does."""
    payload: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Whatever else only its environment reads."""
    difficulty: float | None = None
    """Harder tasks have larger numbers; comparable within one suite only."""
    tags: tuple[str, ...] = ()
    """Words to filter and to report by."""
    split: str = "train"
    """Name of the split that the task belongs to."""
    suite: str = ""
    """Name of the suite that the task belongs to, if any."""

    def __post_init__(self) -> None:
        if not self.id or not self.env_id:
            raise RecordError(
                f"a task needs an 'id' and an 'env_id' (got {self.id!r}, {self.env_id!r})"
            )
        _check_texts("answers", self.answers)
        _check_texts("tags", self.tags)

    @property
    def content_hash(self) -> str:
        """SHA-256 of what is asked, whatever its id: environment family, prompt (case and spacing
        folded) and payload. Two tasks with equal hashes are one task for the leak check.
        """
        family = self.env_id.rsplit("-v", 1)[0]
        prompt = " ".join(self.prompt.casefold().split())
        text = canonical_json([family, prompt, dict(self.payload)])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _check_texts(name: str, value: object) -> None:
    """Raise unless a field is a tuple of texts: of a string the letters would be the answers."""
    texts = cast("tuple[object, ...]", value)
    if not isinstance(value, tuple) or not all(isinstance(text, str) for text in texts):
        example = (value,) if isinstance(value, str) else ("27",)
        raise RecordError(f"{name!r} must be a tuple of texts, such as {example!r} (got {value!r})")
