"""Atomic checkpoints of everything that has state.

A checkpoint is a folder `step_000020`: weights, optimiser and random states as a distributed
checkpoint, `state.json` for the rest, and the checksums of all files. It is written beside its
final name and renamed when it is whole. Of the complete ones the newest whose checksums hold
counts.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import pydantic
import torch
from pydantic import Field, JsonValue
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

from agentgym.errors import CheckpointError, UnusableCheckpointError
from agentgym.files.bounded import DataError, read_text
from agentgym.files.checksums import damage, sync_folder, write_checksums
from agentgym.runs.folder import STATE_FILE, checkpoint_folders
from agentgym.trainers.learner.distributed import World
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.learner.optimizer import fill_state
from agentgym.trainers.learner.tensor_files import dcp, load_tensors, save_tensors

logger = logging.getLogger(__name__)

T = TypeVar("T")

SCHEMA = 1
TENSORS = "tensors"
WARM_START = "warmstart"
"""Checkpoint of a warm start; it goes when that of a step is there."""
_MAX_STATE_BYTES = 1 << 26

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """What the loop must know to go on: the next step, never the last one done."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(extra="forbid")

    next_step: Count
    """Index of the first step that has not been taken."""
    next_draw: Count
    """Index of the next task to draw; tasks are identified by it, not by counting episodes."""
    outstanding: tuple[Count, ...] = ()
    """Draws below it whose groups were begun and not trained on: all others are used up."""
    policy_version: Count
    """Learner updates behind the weights."""
    sampled_tokens: Count
    """Tokens sampled in training so far."""
    elapsed_s: Seconds
    """Seconds of training so far, over all processes that worked on the run."""
    step_s: Seconds
    """Of these, seconds in rollouts and updates: evaluations and saving excluded."""
    offsets: Mapping[str, Count] = field(default_factory=dict[str, int])
    """Bytes of each of the run's append-only files that belong to the steps done."""
    controllers: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """State of the objective's controllers and samplers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """What `state.json` holds."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(extra="forbid")

    schema: Literal[1] = SCHEMA
    """Version of what is written."""
    updates: Count
    """Updates that the learner has taken."""
    loop: LoopState
    """Where the loop stands."""


def save(folder: Path, learner: Learner, state: LoopState, *, keep: int) -> Path:
    """Write a checkpoint and return its folder; only the newest `keep` up to it stay.

    A later one belongs to a future that the run was cut off from: it is deleted.

    Raises:
        CheckpointError: If it cannot be written, such as on a full disk; older ones are untouched.
    """
    stored = StoredState(updates=learner.updates, loop=state)
    final = folder / f"step_{state.next_step:06d}"
    write(final, _tensors(learner), state_json(stored), learner.world)
    if learner.world.is_main:
        _drop_others(folder, state.next_step, keep=keep)
        shutil.rmtree(folder / WARM_START, ignore_errors=True)
    return final


def write(final: Path, tensors: dict[str, Any], state: bytes, world: World) -> None:
    """Write a checkpoint's folder, whole or not at all.

    Args:
        final: Its name; one that is there is replaced.
        tensors: Everything that torch keeps, nested by name.
        state: Content of `state.json`.
        world: Whose processes write, each its share.

    Raises:
        CheckpointError: If it cannot be written.
    """
    partial = final.with_name(f".{final.name}.partial")
    try:
        if world.is_main:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        save_tensors(tensors, partial / TENSORS, alone=world.size == 1)
        if world.is_main:
            with (partial / STATE_FILE).open("wb") as stream:
                stream.write(state)
                stream.flush()
                os.fsync(stream.fileno())
            write_checksums(partial)
            shutil.rmtree(final, ignore_errors=True)
            os.replace(partial, final)
            sync_folder(final.parent)
    except (OSError, RuntimeError, DataError, dcp.api.CheckpointException) as error:
        # torch wraps what failed, a full disk too, and not as an ordinary exception.
        shutil.rmtree(partial, ignore_errors=True)
        reason = " ".join(str(error).split())[-300:]
        raise CheckpointError(f"checkpoint {final} could not be written: {reason}") from error


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint whose files are as they were written; None if there is none.

    Those that were being written when their process ended are ignored, damaged ones are left for an
    older one; both with a message.

    Raises:
        UnusableCheckpointError: If there are checkpoints and all of them are damaged.
    """
    for entry in sorted(folder.glob(".step_*")):
        logger.warning("ignoring the incomplete checkpoint %s", entry)
    wrong: list[str] = []
    for path in reversed(checkpoint_folders(folder).values()):
        problem = damage(path)
        if problem is None:
            if wrong:
                logger.warning("going on from %s: damaged are %s", path, "; ".join(wrong))
            return path
        wrong.append(f"{path.name} ({problem})")
    if wrong:
        raise UnusableCheckpointError(
            f"no checkpoint in {folder} can be resumed from: {'; '.join(wrong)}; put a copy in "
            "place, or begin anew in another 'run_dir'"
        )
    return None


def is_usable(path: Path) -> bool:
    """Return whether there is a checkpoint at `path`; one that is damaged is named, and none."""
    problem = damage(path) if path.exists() else ""
    if problem:
        logger.warning("%s (%s) is damaged: what it holds is done again", path, problem)
    return problem is None


def latest_of_all(folder: Path, world: World) -> Path | None:
    """Return `latest` as rank 0 finds it, or raise what it raises, in every rank."""
    found: Path | None = None
    with world.together():
        if world.is_main:
            found = latest(folder)
    return world.broadcast(found)


def load(path: Path, learner: Learner) -> LoopState:
    """Restore weights, optimiser, schedule and random states in place; return the loop's state.

    Raises:
        UnusableCheckpointError: If something is missing, or belongs to another model: a checkpoint
            without optimiser or random states is no checkpoint to resume from.
    """
    stored = read_state(path, StoredState)
    tensors = _tensors(learner)
    load_tensors(tensors, path / TENSORS, alone=learner.world.size == 1)
    set_state_dict(
        _trained(learner),
        learner.optimizer,
        model_state_dict=tensors["model"],
        optim_state_dict=tensors["optimizer"],
    )
    restore_chance(tensors["rng"])
    learner.updates = stored.updates
    return stored.loop


def load_weights(path: Path, model: nn.Module) -> None:
    """Put the policy's weights of a checkpoint into a model of the same shape, alone.

    Raises:
        UnusableCheckpointError: If they are not there, or are another model's.
    """
    policy = nn.ModuleDict({"policy": model})
    tensors = {"model": get_model_state_dict(policy)}
    load_tensors(tensors, path / TENSORS, alone=True)
    set_model_state_dict(policy, tensors["model"])


def state_json(state: object) -> bytes:
    """Return the content of `state.json` that `read_state` reads back."""
    return pydantic.TypeAdapter(type(state)).dump_json(state)


def read_state(path: Path, kind: type[T]) -> T:
    """Return what `state.json` of a checkpoint holds.

    Raises:
        UnusableCheckpointError: If it cannot be read, or is something else.
    """
    try:
        text = read_text(path / STATE_FILE, max_bytes=_MAX_STATE_BYTES)
    except DataError as error:
        raise UnusableCheckpointError(
            f"{path} is not a checkpoint to resume from: {STATE_FILE}: {error}"
        ) from error
    try:
        schema = json.loads(text).get("schema")
        if schema != SCHEMA:
            raise UnusableCheckpointError(
                f"{path} has schema {schema!r}; this version reads {SCHEMA}"
            )
        return pydantic.TypeAdapter(kind).validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        reason = f"{name!r}: {first['msg']} (got {first['input']!r:.60})"
    except (ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, UnusableCheckpointError):
            raise
        reason = str(error)
    raise UnusableCheckpointError(f"{path / STATE_FILE} is no state of a run: {reason}")


def _trained(learner: Learner) -> nn.ModuleDict:
    """Return everything that the optimiser moves, by name."""
    parts: dict[str, nn.Module] = {"policy": learner.model}
    if learner.critic is not None:
        parts["critic"] = learner.critic
    return nn.ModuleDict(parts)


def _tensors(learner: Learner) -> dict[str, Any]:
    fill_state(learner.optimizer)
    model, optimizer = get_state_dict(_trained(learner), learner.optimizer)
    return {"model": model, "optimizer": optimizer, "rng": chance()}


def chance() -> dict[str, torch.Tensor]:
    """Return the states of torch's random generators. Nothing here draws from Python's global."""
    states = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_chance(states: Mapping[str, torch.Tensor]) -> None:
    """Set the states of torch's random generators to what `chance` returned."""
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available() and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def _drop_others(folder: Path, step: int, *, keep: int) -> None:
    """Delete the checkpoints after `step`, and of those up to it all but the newest `keep`."""
    found = checkpoint_folders(folder)
    kept = [number for number in found if number <= step][-keep:]
    for number, path in found.items():
        if number not in kept:
            shutil.rmtree(path)
