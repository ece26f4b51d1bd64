"""What an objective costs beside the model: `python tests/bench/objective.py`.

For each preset the seconds of everything between the records' tables and the backward through the
model (`prepare`, then the loss and its gradient with respect to the log-probabilities, micro-batch
by micro-batch) over the seconds of one forward and backward of the same tokens. The exact norm of
the clipping bias (`s_ppo`, `st_ppo`) is a second backward of the model by design and not counted.
Then the seconds of scoring the gold answer after each turn of 6-turn episodes, over the update of
the same episodes. Numbers are drawn at random: nothing here depends on their values.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentgym.config import OptimConfig
from agentgym.trainers.batch import Batch
from agentgym.trainers.learner.distributed import World
from agentgym.trainers.learner.layout import UpdateOptions, micro_batches
from agentgym.trainers.learner.learner import Learner
from agentgym.trainers.learner.probe_scoring import score_requests
from agentgym.trainers.models.load import load_model, resolve_policy
from agentgym.trainers.objective import prepare
from agentgym.trainers.objective.preset import Preset, list_presets, load_preset
from agentgym.trainers.parts.probes import ScoringRequest
from agentgym.trainers.parts.tables import RowTable, TurnTable, TurnValues

GROUP_SIZE = 8
PROMPT_SHARE = 8
"""One token in so many is prompt; each turn is two thirds sampled, one third observed."""


def main() -> None:
    """Print one line a preset, then the line of the beliefs."""
    options = _options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    folder = resolve_policy(options.policy) if options.policy != "tiny" else _tiny()
    model: Any = load_model(folder, device=device)
    vocabulary = int(model.config.vocab_size)
    if options.only_beliefs:
        print(name)
        _print_beliefs(model, vocabulary, device, options)
        return
    batch = random_batch(options.rows, options.tokens, options.turns, vocabulary)
    print(
        f"{name}, {options.rows} rows x {options.tokens} tokens, {options.turns} turns", flush=True
    )
    seconds = _model_seconds(model, batch, device, options)
    print(
        f"forward and backward of the model: {seconds:.3f} s (one pass over all rows)", flush=True
    )
    for preset_name in list_presets():
        preset = load_preset(preset_name)
        spent = [_preset_seconds(preset, batch, device, options) for _ in range(options.repeats)]
        # The first call of a preset compiles and allocates; a run takes thousands.
        typical = statistics.median(spent[1:])
        print(f"{preset_name:16} {typical:8.4f} s   {typical / seconds:7.2%}", flush=True)
    _print_beliefs(model, vocabulary, device, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    # On a CPU a small size only shows that it runs: the figures that count are a GPU's.
    on_gpu = torch.cuda.is_available()
    policy, rows, tokens = ("smollm2", 512, 4096) if on_gpu else ("tiny", 32, 256)
    parser.add_argument("--policy", default=policy, help="tiny, smollm2 or a folder")
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--tokens", type=int, default=tokens)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--micro-batch-tokens", type=int, default=32_768)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument(
        "--episodes", type=int, default=128 if on_gpu else 16, help="of the beliefs"
    )
    parser.add_argument("--only-beliefs", action="store_true", help="leave the presets out")
    parser.add_argument("--episode-tokens", type=int, default=640 if on_gpu else 128)
    parser.add_argument("--answer-tokens", type=int, default=6)
    return parser.parse_args()


def _tiny() -> Path:
    import tempfile

    from agentgym.trainers.models.tiny import build_tiny

    return build_tiny(Path(tempfile.mkdtemp()) / "tiny")


def random_batch(rows: int, tokens: int, turns: int, vocabulary: int) -> Batch:
    """Return a batch of one row a trajectory with every field that any preset asks for."""
    draw = torch.Generator().manual_seed(0)
    turn_ids = _turn_ids(rows, tokens, turns)
    mask = turn_ids >= 0
    valid = torch.ones(rows, turns, dtype=torch.bool)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=draw) * scale

    logprobs = -normal(rows, tokens).abs()
    table = TurnTable(
        group=torch.arange(rows) // GROUP_SIZE,
        turn_valid=valid,
        agent=torch.zeros(rows, turns, dtype=torch.long),
        outcome=(torch.rand(rows, generator=draw) < 0.5).double(),
        scored=torch.ones(rows, dtype=torch.bool),
        truncated=torch.rand(rows, generator=draw) < 0.1,
        on_policy=torch.ones(rows, dtype=torch.bool),
        length=mask.sum(dim=1),
        rewards={"needed_call": TurnValues(values=normal(rows, turns).double(), valid=valid)},
        fields={
            "belief_logprobs": -normal(rows, turns + 1).abs().double(),
            "bootstrap_values": normal(rows, 1),
        },
    )
    table_rows = RowTable(
        mask=mask,
        turn_ids=turn_ids,
        role_ids=torch.full((rows, tokens), -1),
        trajectory=torch.arange(rows),
        versions=torch.where(mask, 0, -1),
        logprobs={
            "behavior": logprobs,
            "proximal": logprobs + normal(rows, tokens, scale=0.01),
            "reference": logprobs + normal(rows, tokens, scale=0.1),
        },
        fields={"values": normal(rows, tokens)},
    )
    return Batch(
        trajectory_ids=tuple(f"t{i}" for i in range(rows)),
        group_ids=tuple(f"g{i}" for i in range(-(-rows // GROUP_SIZE))),
        sample_ids=tuple(f"s{i}" for i in range(rows)),
        agent_ids=("default",),
        ids=torch.randint(0, vocabulary, (rows, tokens), generator=draw),
        lengths=torch.full((rows,), tokens),
        table=table,
        rows=table_rows,
    )


def _turn_ids(rows: int, tokens: int, turns: int) -> Tensor:
    start = tokens // PROMPT_SHARE
    length = (tokens - start) // turns
    ids = torch.full((rows, tokens), -1)
    for turn in range(turns):
        first = start + turn * length
        ids[:, first : first + 2 * length // 3] = turn
    return ids


def _timed(work: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _model_seconds(
    model: Any, batch: Batch, device: torch.device, options: argparse.Namespace
) -> float:
    """Return the seconds of a forward and backward over all rows, nothing but the model."""
    pieces = micro_batches(
        batch,
        range(batch.ids.shape[0]),
        packed=False,
        max_tokens=options.micro_batch_tokens,
    )

    def one_pass() -> None:
        for piece in pieces:
            ids = piece.ids.to(device)
            states = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
            _head_loss(model, states, ids).backward()
        model.zero_grad(set_to_none=True)

    _timed(one_pass, device)
    return _timed(one_pass, device)


def _head_loss(model: Any, states: Tensor, ids: Tensor) -> Tensor:
    """Return the mean log-loss, its logits in chunks as in training."""
    from torch.utils.checkpoint import checkpoint

    head, flat, targets = model.get_output_embeddings(), states.flatten(0, 1), ids.flatten()

    def piece(part: Tensor, wanted: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(head(part).float(), wanted, reduction="sum")

    losses = [
        checkpoint(piece, part, wanted, use_reentrant=False)
        for part, wanted in zip(flat.split(2048), targets.split(2048), strict=True)
    ]
    return torch.stack(losses).sum() / targets.numel()


def _preset_seconds(
    preset: Preset, batch: Batch, device: torch.device, options: argparse.Namespace
) -> float:
    """Return the seconds from the tables to the gradient of the log-probabilities."""
    there = batch.to(device)
    policy = there.rows.logprobs["proximal"] + 0.01
    values = there.rows.fields["values"] if preset.critic is not None else None
    per_piece = max(1, options.micro_batch_tokens // options.tokens)

    def work() -> None:
        prepared = prepare.prepare(preset, there)
        for rows in torch.arange(batch.ids.shape[0], device=device).split(per_piece):
            logprobs = policy[rows].detach().requires_grad_()
            own = None if values is None else values[rows].detach().requires_grad_()
            part = prepare.micro_loss(
                preset, prepared, rows, logprobs, entropy=torch.zeros_like(logprobs), values=own
            )
            part.loss.backward()

    return _timed(work, device)


def _print_beliefs(
    model: Any, vocabulary: int, device: torch.device, options: argparse.Namespace
) -> None:
    """Print the cost of the gold answer's probability after each turn, beside the update."""
    batch = random_batch(options.episodes, options.episode_tokens, 6, vocabulary)
    learner = Learner(
        model,
        preset=load_preset("turn_grpo"),
        optim=OptimConfig(learning_rate=1e-6),
        total_updates=100,
        temperature=1.0,
        world=World(device=device),
        options=UpdateOptions(micro_batch_tokens=options.micro_batch_tokens),
    )
    requests = _requests(batch, options.answer_tokens)
    plain = dataclasses.replace(batch, table=dataclasses.replace(batch.table, fields={}))
    update, beliefs = [], []
    for _ in range(options.repeats):
        update.append(_timed(lambda: learner.update(plain, is_single=True), device))
        beliefs.append(_timed(lambda: score_requests(learner, plain, requests), device))
    spent, own = statistics.median(beliefs[1:]), statistics.median(update[1:])
    print(
        f"beliefs of {options.episodes} episodes of 6 turns, {options.episode_tokens} tokens: "
        f"{spent:.3f} s; the update alone, without any generation: {own:.3f} s ({spent / own:.1%})"
    )


def _requests(batch: Batch, length: int) -> tuple[ScoringRequest, ...]:
    """Return one request before the first turn and one after each."""
    requests: list[ScoringRequest] = []
    for row in range(batch.ids.shape[0]):
        ids = batch.ids[row].tolist()
        turns = batch.rows.turn_ids[row]
        ends = [int((turns == turn).nonzero().max()) + 1 for turn in range(6)]
        first = int((turns == 0).nonzero().min())
        for turn, end in enumerate([first, *ends]):
            requests.append(
                ScoringRequest(
                    trajectory=row,
                    column=turn,
                    prefix=tuple(ids[:end]),
                    target=tuple(ids[:length]),
                    scored=(0, length),
                )
            )
    return tuple(requests)


if __name__ == "__main__":
    main()
