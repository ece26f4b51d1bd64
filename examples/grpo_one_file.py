"""Multi-turn GRPO in one plain file: an environment, a policy, rollouts, advantages, loss, update.

It imports torch and nothing of AgentGym's trainers, is written with loops where loops are clearer,
and is the oracle of the library: on the same batch both give the same loss and gradient
(tests/examples/test_grpo_one_file.py). Run it: `python examples/grpo_one_file.py`.

The game: guess a secret number in three turns. A turn is one digit and a full stop; the game
answers H (higher), L (lower), R (right) or ? (no guess). Solving it needs the answers: guessing
blindly finds 3 of 7 secrets at most, halving the range finds all.

    < | 3 . | H | 5 . | L | 4 . | R        |: written by the game, not trained
    -   0 0   -   1 1   -   2 2   -        turn of each trained token
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

VOCABULARY = "0123456.HLR?<"
IDS = {character: position for position, character in enumerate(VOCABULARY)}
SECRETS, TURNS, TURN_TOKENS = 7, 3, 2


# ------------------------------------------------------------------------------ the environment


@dataclass
class Game:
    """Three guesses at one secret number."""

    secret: int
    guesses: int = 0
    is_solved: bool = False

    def step(self, action: str) -> tuple[str, bool]:
        """Return the game's answer to a turn, and whether the episode is over."""
        self.guesses += 1
        if len(action) != 2 or action[1] != "." or not action[0].isdigit():
            answer = "?"
        elif int(action[0]) == self.secret:
            answer, self.is_solved = "R", True
        else:
            answer = "H" if int(action[0]) < self.secret else "L"
        return answer, self.is_solved or self.guesses == TURNS


# ----------------------------------------------------------------------------------- the record


@dataclass
class Episode:
    """One episode as tokens. Every list has one entry a token: what was sampled is the truth."""

    group: int
    ids: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)  # turn of each sampled token, -1 elsewhere
    logprobs: list[float] = field(default_factory=list)  # as sampled; 0 elsewhere
    reward: float = 0.0

    def append(self, token: int, turn: int, logprob: float) -> None:
        """Add one token; the three lists cannot get out of step."""
        self.ids.append(token)
        self.turns.append(turn)
        self.logprobs.append(logprob)

    @property
    def length(self) -> int:
        """Number of trained tokens."""
        return sum(turn >= 0 for turn in self.turns)


# ----------------------------------------------------------------------------------- the policy


class Policy(nn.Module):
    """A recurrent language model over the game's thirteen characters."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY), width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, len(VOCABULARY))

    def forward(self, ids: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return [row, time, vocabulary] logits of the next token, and the memory's state."""
        hidden, after = self.memory(self.embedding(ids), state)
        return self.head(hidden), after

    def logprobs(self, episodes: Sequence[Episode]) -> Tensor:
        """Return [row, time] log-probability of each token given those before it; 0 for the first.

        Rows are padded on the right, which a causal model does not see.
        """
        width = max(len(episode.ids) for episode in episodes)
        ids = torch.zeros(len(episodes), width, dtype=torch.long)
        for row, episode in enumerate(episodes):
            ids[row, : len(episode.ids)] = torch.tensor(episode.ids)
        logits, _ = self(ids[:, :-1])
        chosen = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        return torch.cat([torch.zeros_like(chosen[:, :1]), chosen], dim=1)


# --------------------------------------------------------------------------------- the rollouts


@torch.no_grad()
def rollout(
    policy: Policy, secrets: Sequence[int], size: int, chance: torch.Generator
) -> list[Episode]:
    """Return `size` episodes of each secret, all played side by side.

    At each position an episode either reads what the game has written, or samples.
    """
    games = [Game(secret) for secret in secrets for _ in range(size)]
    episodes = [Episode(group=position // size) for position in range(len(games))]
    unread = [[IDS["<"]] for _ in games]
    written = ["" for _ in games]
    is_over = [False for _ in games]
    logits, state = torch.zeros(len(games), 1, len(VOCABULARY)), None
    while not all(is_over):
        current = torch.zeros(len(games), 1, dtype=torch.long)
        distribution = logits[:, 0].log_softmax(-1)
        drawn = torch.multinomial(distribution.exp(), 1, generator=chance)[:, 0].tolist()
        for at, (game, episode) in enumerate(zip(games, episodes, strict=True)):
            if unread[at]:
                current[at, 0] = unread[at].pop(0)
                episode.append(int(current[at, 0]), turn=-1, logprob=0.0)
                is_over[at] = is_over[at] or (game.is_solved or game.guesses == TURNS)
            elif not is_over[at]:
                token = drawn[at]
                current[at, 0] = token
                episode.append(token, turn=game.guesses, logprob=float(distribution[at, token]))
                written[at] += VOCABULARY[token]
                if VOCABULARY[token] == "." or len(written[at]) == TURN_TOKENS:
                    answer, _ = game.step(written[at])
                    unread[at], written[at] = [IDS[answer]], ""
        logits, state = policy(current, state)
    for game, episode in zip(games, episodes, strict=True):
        episode.reward = float(game.is_solved)
    return episodes


# ----------------------------------------------------------------------------------- the method


def advantages(episodes: Sequence[Episode], eps: float = 1e-6, floor: float = 1e-3) -> list[float]:
    """Return A = (R - mean) / (std + eps) within each group, with the sample deviation.

    A group whose rewards differ by `floor` at most teaches nothing: A = 0.
    """
    result = []
    for episode in episodes:
        rewards = [other.reward for other in episodes if other.group == episode.group]
        if max(rewards) - min(rewards) <= floor:
            result.append(0.0)
            continue
        mean = sum(rewards) / len(rewards)
        variance = sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)
        result.append((episode.reward - mean) / (math.sqrt(variance) + eps))
    return result


def log_ratios(policy: Tensor, proximal: Tensor, turns: Sequence[int], level: str) -> list[Tensor]:
    """Return the log-ratio of each trained token of one row: its own, or its turn's mean."""
    trained = [time for time, turn in enumerate(turns) if turn >= 0]
    own = {time: policy[time] - proximal[time] for time in trained}
    if level == "token":
        return [own[time] for time in trained]
    means = {
        turn: torch.stack([own[time] for time in trained if turns[time] == turn]).mean()
        for turn in {turns[time] for time in trained}
    }
    return [means[turns[time]] for time in trained]


def grpo_loss(
    policy: Tensor,
    proximal: Tensor,
    episodes: Sequence[Episode],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    level: str = "token",
) -> Tensor:
    """Return the mean over episodes of the mean over their tokens of -min(r A, clip(r) A).

    Args:
        policy: [row, time] log-probabilities under the weights that are trained.
        proximal: [row, time] the same at the start of the step; no gradient.
        episodes: The rows. Those without a trained token count nowhere.
        clip_low: Distance of the lower clip from ratio 1.
        clip_high: Distance of the upper clip from ratio 1.
        level: "token" or "turn": whose ratio is clipped.
    """
    counted = sum(episode.length > 0 for episode in episodes)
    total = policy.sum() * 0
    for row, (episode, advantage) in enumerate(zip(episodes, advantages(episodes), strict=True)):
        for log_ratio in log_ratios(policy[row], proximal[row], episode.turns, level):
            ratio = log_ratio.clamp(-20, 20).exp()
            clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
            objective = torch.minimum(ratio * advantage, clipped * advantage)
            total = total - objective / (counted * episode.length)
    return total


# ------------------------------------------------------------------------------------- the loop


def train(
    *,
    steps: int,
    seed: int,
    tasks: int = 8,
    size: int = 8,
    updates: int = 2,
    learning_rate: float = 3e-3,
    level: str = "token",
    report_every: int = 10,
) -> list[float]:
    """Return the share of solved episodes of each step: sample, compare, update, repeat."""
    torch.manual_seed(seed)
    chance, draws = torch.Generator().manual_seed(seed), random.Random(seed)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    solved: list[float] = []
    for step in range(steps):
        secrets = [draws.randrange(SECRETS) for _ in range(tasks)]
        episodes = rollout(policy, secrets, size, chance)
        solved.append(sum(episode.reward for episode in episodes) / len(episodes))
        proximal = policy.logprobs(episodes).detach()
        for _ in range(updates):
            optimizer.zero_grad()
            grpo_loss(policy.logprobs(episodes), proximal, episodes, level=level).backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
        if report_every and (step + 1) % report_every == 0:
            recent = solved[-report_every:]
            print(f"step {step + 1:4d}   solved {sum(recent) / len(recent):.2f}", flush=True)
    return solved


def main() -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(description="multi-turn GRPO in one plain file")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--level", choices=("token", "turn"), default="token")
    options = parser.parse_args()
    train(steps=options.steps, seed=options.seed, level=options.level)


if __name__ == "__main__":
    main()
