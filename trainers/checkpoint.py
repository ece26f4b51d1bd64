"""Atomic checkpoints of everything that has state.

A checkpoint is a folder `step_000020`: weights, optimiser and random states as a distributed
checkpoint, and `state.json` for the rest. It is written beside its final name and renamed when it
is whole, so a folder with that name is complete; anything else is ignored, with a message.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

from agentgym.errors import CheckpointError
from agentgym.records import Json
from agentgym.runs.folder import STATE_FILE, is_whole_checkpoint
from agentgym.trainers.learner import Learner

logger = logging.getLogger(__name__)

dcp: Any = torch.distributed.checkpoint
"""Its functions are public, though its stubs do not say so."""

SCHEMA = 1
_NAME = re.compile(r"step_(\d{6,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """What the loop must know to go on: the next step, never the last one done."""

    next_step: int
    """Index of the first step that has not been taken."""
    next_draw: int
    """Index of the next task to draw; tasks are identified by it, not by counting episodes."""
    outstanding: tuple[int, ...] = ()
    """Draws below it whose groups were begun and not trained on: all others are used up."""
    policy_version: int
    """Learner updates behind the weights."""
    sampled_tokens: int
    """Tokens sampled in training so far."""
    elapsed_s: float
    """Seconds of training so far, over all processes that worked on the run."""
    step_s: float
    """Of these, seconds in rollouts and updates: evaluations and saving excluded."""
    offsets: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes of each of the run's append-only files that belong to the steps done."""
    controllers: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """State of the objective's controllers and samplers."""


def save(folder: Path, learner: Learner, state: LoopState, *, keep: int) -> Path:
    """Write a checkpoint and return its folder; only the newest `keep` stay.

    Raises:
        CheckpointError: If it cannot be written, such as on a full disk; older ones are untouched.
    """
    final = folder / f"step_{state.next_step:06d}"
    partial = folder / f".{final.name}.partial"
    try:
        if learner.world.is_main:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        with _alone_is_no_news():
            alone = learner.world.size == 1
            dcp.save(_tensors(learner), checkpoint_id=str(partial / "tensors"), no_dist=alone)
        if learner.world.is_main:
            _write_json(partial / STATE_FILE, _state_dict(learner, state))
            shutil.rmtree(final, ignore_errors=True)
            os.replace(partial, final)
            _sync(folder)
            _drop_old(folder, keep=keep)
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        # torch wraps what failed, a full disk too, and not as an ordinary exception.
        shutil.rmtree(partial, ignore_errors=True)
        reason = " ".join(str(error).split())[-300:]
        raise CheckpointError(f"checkpoint {final} could not be written: {reason}") from error
    return final


def latest(folder: Path) -> Path | None:
    """Return the newest complete checkpoint; incomplete ones are ignored, with a message."""
    if not folder.is_dir():
        return None
    complete: list[tuple[int, Path]] = []
    for entry in sorted(folder.iterdir()):
        match = _NAME.fullmatch(entry.name)
        if match and is_whole_checkpoint(entry):
            complete.append((int(match.group(1)), entry))
        elif "step_" in entry.name:
            logger.warning("ignoring the incomplete checkpoint %s", entry)
    return max(complete)[1] if complete else None


def load(path: Path, learner: Learner) -> LoopState:
    """Restore weights, optimiser, schedule and random states in place; return the loop's state.

    Raises:
        CheckpointError: If something is missing, or belongs to another model: a checkpoint without
            optimiser or random states is no checkpoint to resume from.
    """
    try:
        data = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a checkpoint to resume from: {error}") from error
    if data.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{path} has schema {data.get('schema')!r}; this version reads {SCHEMA}"
        )
    tensors = _tensors(learner)
    try:
        with _alone_is_no_news():
            alone = learner.world.size == 1
            dcp.load(tensors, checkpoint_id=str(path / "tensors"), no_dist=alone)
    except (OSError, RuntimeError, KeyError, dcp.api.CheckpointException) as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{path} does not fit this run: {reason}") from error
    set_state_dict(
        _trained(learner),
        learner.optimizer,
        model_state_dict=tensors["model"],
        optim_state_dict=tensors["optimizer"],
    )
    torch.set_rng_state(tensors["rng"]["torch"])
    if torch.cuda.is_available() and "cuda" in tensors["rng"]:
        torch.cuda.set_rng_state(tensors["rng"]["cuda"])
    learner.updates = int(data["updates"])
    loop = dict(data["loop"])
    loop["outstanding"] = tuple(loop.get("outstanding", ()))  # JSON has lists only
    return LoopState(**loop)


def load_weights(path: Path, model: nn.Module) -> None:
    """Put the policy's weights of a checkpoint into a model of the same shape, alone.

    Raises:
        CheckpointError: If they are not there, or are another model's.
    """
    policy = nn.ModuleDict({"policy": model})
    tensors = {"model": get_model_state_dict(policy)}
    try:
        with _alone_is_no_news():
            dcp.load(tensors, checkpoint_id=str(path / "tensors"), no_dist=True)
    except (OSError, RuntimeError, KeyError, dcp.api.CheckpointException) as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{path} does not fit the run's model: {reason}") from error
    set_model_state_dict(policy, tensors["model"])


@contextmanager
def _alone_is_no_news() -> Generator[None]:
    """Silence torch's remark that one process saves alone, which is what was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _trained(learner: Learner) -> nn.ModuleDict:
    """Return everything that the optimiser moves, by name."""
    parts: dict[str, nn.Module] = {"policy": learner.model}
    if learner.critic is not None:
        parts["critic"] = learner.critic
    return nn.ModuleDict(parts)


def _tensors(learner: Learner) -> dict[str, Any]:
    model, optimizer = get_state_dict(_trained(learner), learner.optimizer)
    rng = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        rng["cuda"] = torch.cuda.get_rng_state()
    return {"model": model, "optimizer": optimizer, "rng": rng}


def _state_dict(learner: Learner, state: LoopState) -> dict[str, Any]:
    # No state of Python's global generator: nothing here draws from it.
    return {
        "schema": SCHEMA,
        "updates": learner.updates,
        "loop": {name: getattr(state, name) for name in LoopState.__slots__},
    }


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as stream:
        json.dump(data, stream)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    """Make the rename durable: a crash after `save` returned must find the checkpoint."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _drop_old(folder: Path, *, keep: int) -> None:
    steps = sorted(entry for entry in folder.iterdir() if _NAME.fullmatch(entry.name))
    for old in steps[:-keep]:
        shutil.rmtree(old)
