"""vLLM itself, on a CPU in float32: protocol, parity with the learner, cache, weights, a kill.

`bash .ci/run` installs it in an environment of its own; AGENTGYM_VLLM_ENV says where.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import signal
import statistics
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym import train
from agentgym.checks.policy import check_policy
from agentgym.env.suites import load_suite
from agentgym.errors import PolicyError
from agentgym.policies.base import GenerateRequest
from agentgym.policies.vllm import Server, VllmOptions, VllmPolicy, connect, engine_policy
from agentgym.policies.vllm.wire import Ask
from agentgym.records import Sampling, Trajectory
from agentgym.records.limits import Limits
from agentgym.renderer.folder import load_renderer
from agentgym.rollouts.engine import Engine, GroupSpec
from agentgym.serving.launch import ServerDevice, ServerProcess, ServerSpec, free_port, log_tail
from agentgym.trainers.models.load import load_model
from agentgym.trainers.weight_sync.staging import untied_copy
from agentgym.trainers.weight_sync.synced_policy import (
    FLOAT32,
    SyncedPolicy,
    Tolerance,
    probe_logprobs,
)
from agentgym.trainers.weight_sync.transports import AdapterTransfer, FolderTransfer

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("AGENTGYM_VLLM_ENV", ROOT / ".vllm")) / "bin" / "python"
BLOCK = 128
"""Ids of one block of the prefix cache on a CPU."""
EPISODES, TURNS = 200, 4

pytestmark = [
    pytest.mark.service,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no vLLM environment at {PYTHON}"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]


@pytest.fixture(scope="module")
def folder(telling_tiny: Path) -> Path:
    """A tiny model, as a learner has it: with a tied head."""
    return telling_tiny


@pytest.fixture(scope="module")
def spec(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> ServerSpec:
    work = tmp_path_factory.mktemp("vllm")
    return ServerSpec(
        folder=untied_copy(folder, work / "served"),
        port=free_port(),
        log=work / "server.log",
        python=str(PYTHON),
        device=ServerDevice.CPU,
        max_context_tokens=1_536,
        max_rows=128,
        lora_rank=16,
        is_eager=True,
    )


@pytest.fixture(scope="module")
def server(spec: ServerSpec) -> Iterator[ServerProcess]:
    process = ServerProcess(spec)
    try:
        process.wait_ready(400)
        yield process
    finally:
        process.stop()
        if process.exit_code not in {0, -signal.SIGTERM, -signal.SIGKILL}:
            print(log_tail(spec.log))


@pytest.fixture
async def policy(server: ServerProcess, folder: Path) -> AsyncIterator[VllmPolicy]:
    options = VllmOptions(patience_s=10)  # it is not started anew here
    opened = await connect(server.spec.url, renderer=load_renderer(folder), options=options)
    yield opened
    await opened.aclose()


@pytest.fixture
def learner(folder: Path) -> Any:
    return load_model(folder)


def specs(count: int, *, temperature: float = 1.0, group: str = "g") -> list[GroupSpec]:
    suite = load_suite("math/arithmetic")
    return [
        GroupSpec(
            id=f"{group}{number}",
            task=suite.task("train", number),
            size=1,
            seed=number,
            sampling=Sampling(temperature=temperature, max_new_tokens=24, seed=11),
            limits=Limits(max_turns=TURNS),
        )
        for number in range(count)
    ]


async def episodes(policy: Any, count: int, **options: Any) -> list[Trajectory]:
    async with Engine(policy, max_concurrent=64) as engine:
        groups = await engine.run_groups(specs(count, **options))
    found = [trajectory for group in groups for trajectory in group.trajectories]
    assert not [t.failure for t in found if t.failure is not None]
    return found


def whole(trajectory: Trajectory) -> tuple[list[int], list[tuple[int, float]]]:
    """Return all ids of an episode, and place and stored log-probability of each sampled one."""
    ids: list[int] = []
    sampled: list[tuple[int, float]] = []
    for turn in trajectory.turns:
        assert turn.prompt_ids is not None
        assert turn.completion.tokens is not None
        assert turn.completion.tokens.behavior_logprobs is not None
        ids = [*ids[: turn.prefix_length], *turn.prompt_ids]
        sampled += [
            (len(ids) + place, value)
            for place, value in enumerate(turn.completion.tokens.behavior_logprobs)
        ]
        ids += turn.completion.tokens.ids
    return ids, sampled


async def test_f20_vllm_asks_for_its_key_on_every_path_but_health(server: ServerProcess) -> None:
    stranger = Server(server.spec.url, key="another")
    assert await stranger.is_healthy()
    for path in ("/metrics", "/v1/models", "/is_paused", "/get_world_size", "/version", "/docs"):
        with pytest.raises(PolicyError, match="answered 401"):
            await stranger.get(path, timeout_s=60)
    for path in (
        "/v1/completions",
        "/v1/load_lora_adapter",
        "/tokenize",
        "/pause",
        "/resume",
        "/reset_prefix_cache",
        "/collective_rpc",
        "/update_weights",
    ):
        with pytest.raises(PolicyError, match="answered 401"):
            await stranger.post(path, {}, timeout_s=60, is_repeatable=False)
    await stranger.aclose()
    own = Server(server.spec.url)  # it finds the key
    assert (await own.get("/is_paused", timeout_s=60)) == {"is_paused": False}
    await own.aclose()


def tempered(model: Any, ids: list[int], temperature: float) -> list[float]:
    """Return [time] the learner's log-probability of each id but the first."""
    with torch.no_grad():
        inputs = torch.tensor([ids])
        logprobs = (model(input_ids=inputs).logits[0, :-1].float() / temperature).log_softmax(-1)
    return logprobs.gather(-1, inputs[0, 1:, None])[:, 0].tolist()


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


class Uncached(VllmPolicy):
    """Every request has a salt of its own, so the prefix cache has nothing for it."""

    def ask(self) -> Ask:
        return replace(super().ask(), cache_salt=uuid.uuid4().hex)


async def test_client_keeps_the_contract_of_policies(server: ServerProcess, folder: Path) -> None:
    report = await check_policy(await connect(server.spec.url, renderer=load_renderer(folder)))
    assert not report.problems, str(report)


@pytest.mark.parametrize("is_cached", [True, False])
async def test_stored_logprobs_are_those_of_a_second_request_and_of_the_learner(
    policy: VllmPolicy, learner: Any, folder: Path, is_cached: bool
) -> None:
    asked: VllmPolicy = policy
    if not is_cached:
        asked = Uncached(
            policy.servers,
            policy.renderer,
            model=policy.model,
            max_context_tokens=policy.max_context_tokens,
        )
    before = await policy.servers[0].load()
    records = await episodes(asked, EPISODES)
    after = await policy.servers[0].load()
    assert (after.prefix_hits > before.prefix_hits) == is_cached
    turns = [len(trajectory.turns) for trajectory in records]
    assert statistics.mean(turns) > 2
    by_server: list[float] = []
    by_learner: list[float] = []
    # One after the other: with adapters on, vLLM 0.32 on a CPU ends where it scores a prompt beside
    # other requests.
    scored = [await policy.score([(whole(t)[0][:1], whole(t)[0][1:])]) for t in records]
    for trajectory, (server_scores,) in zip(records, scored, strict=True):
        ids, sampled = whole(trajectory)
        own = tempered(learner, ids, 1.0)
        by_server += [abs(server_scores[place - 1] - value) for place, value in sampled]
        by_learner += [abs(own[place - 1] - value) for place, value in sampled]
    for name, off in (("second request", by_server), ("learner", by_learner)):
        print(
            f"cache {is_cached}, {name}: {len(off)} ids, p99.9 {percentile(off, 0.999):.2e}, "
            f"largest {max(off):.2e}"
        )
        assert percentile(off, 0.999) <= 1e-3
        assert max(off) <= 1e-2


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
async def test_ratio_of_the_first_step_is_1_g1(
    policy: VllmPolicy, learner: Any, temperature: float
) -> None:
    worst = 0.0
    for trajectory in await episodes(policy, 24, temperature=temperature, group="ratio"):
        ids, sampled = whole(trajectory)
        own = tempered(learner, ids, temperature)
        worst = max([worst, *(abs(math.exp(own[p - 1] - v) - 1) for p, v in sampled)])
    print(f"temperature {temperature}: ratio within {worst:.1e} of 1")
    assert worst <= 1e-3


async def test_every_turn_after_the_first_finds_whole_blocks_cached(policy: VllmPolicy) -> None:
    chooser = random.Random(3)
    salt = f"test-{uuid.uuid4().hex}"
    asked = VllmPolicy(
        policy.servers,
        policy.renderer,
        model=policy.model,
        max_context_tokens=policy.max_context_tokens,
    )
    asked.ask = lambda: Ask(model=policy.model, end_ids=(), cache_salt=salt)
    prompt = tuple(chooser.randrange(20, 200) for _ in range(300))
    before, possible = (await policy.servers[0].load()).prefix_hits, 0
    for turn in range(4):
        request = GenerateRequest(
            episode_id="e",
            turn=turn,
            messages=(),
            prompt_ids=prompt,
            sampling=Sampling(max_new_tokens=48, seed=turn),
        )
        answer = await asked.generate(request)
        assert answer.tokens is not None
        # The last sampled id is never fed to the model.
        fed = len(prompt) + len(answer.tokens.ids) - 1
        possible += fed // BLOCK * BLOCK if turn < 3 else 0
        prompt = (*prompt, *answer.tokens.ids, *(chooser.randrange(20, 200) for _ in range(60)))
    hits = (await policy.servers[0].load()).prefix_hits - before
    assert hits == possible


async def test_scoring_twice_gives_the_same_g11(policy: VllmPolicy) -> None:
    ids = policy.probe_ids
    first = await policy.score([(ids[:1], ids[1:])])
    assert len(first[0]) == len(ids) - 1
    assert first == await policy.score([(ids[:1], ids[1:])])


def _learn(model: Any, seed: int, size: float = 0.02) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += size * torch.randn(parameter.shape, generator=generator)


async def test_weights_change_under_live_requests_and_each_id_has_its_version_g4_g6(
    policy: VllmPolicy,
    learner: Any,
    spec: ServerSpec,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine a server gives back late what was cut; past the wait it would begin anew.
    monkeypatch.setattr(engine_policy, "_SETTLE_S", 60.0)
    transfer = FolderTransfer(spec.folder, tmp_path / "scratch")
    subject = SyncedPolicy(policy, learner, transfer, tolerance=FLOAT32)
    await subject.verify()
    models = {0: load_model(folder)}
    policy.ask = lambda: Ask(  # without end ids
        model=policy.model, end_ids=(), cache_salt=f"test-{policy.version}"
    )

    is_over = False

    async def keep_asking(number: int) -> list[Any]:
        """Ask again and again, so that requests run whenever the weights change."""
        answers: list[Any] = []
        while not is_over:
            request = GenerateRequest(
                episode_id=f"e{number}",
                turn=len(answers),
                messages=(),
                prompt_ids=(*policy.probe_ids[: 40 + number],),
                sampling=Sampling(max_new_tokens=600, seed=number),
            )
            answers.append(await subject.generate(request))
        return answers

    async def change() -> None:
        nonlocal is_over
        try:
            for version in (1, 2):
                await _wait_for_load(policy)
                _learn(learner, version)
                models[version] = load_model(folder)
                models[version].load_state_dict(learner.state_dict())
                await subject.update_weights(None, version)
                print(f"sync {version}: {subject.last_sync}")
        finally:
            is_over = True

    def check(number: int, answer: Any) -> set[int]:
        """Score each id under the weights it names; return the versions."""
        prompt = list(policy.probe_ids[: 40 + number])
        ids, values = list(answer.tokens.ids), answer.tokens.behavior_logprobs
        versions = [r.version for r in answer.tokens.versions for _ in range(r.count)]
        scores = {v: tempered(models[v], prompt + ids, 1.0)[-len(ids) :] for v in set(versions)}
        assert max(abs(scores[v][i] - values[i]) for i, v in enumerate(versions)) <= 1e-3
        return set(versions)

    try:
        changing = asyncio.create_task(change())
        asked = await asyncio.gather(*(keep_asking(n) for n in range(12)))
        await changing
        seen = [check(n, answer) for n, answers in enumerate(asked) for answer in answers]
        assert set().union(*seen) == {0, 1, 2}
        assert sum(len(versions) > 1 for versions in seen) >= 1
    finally:
        await _put_back(policy, folder, spec, tmp_path)


async def _wait_for_load(policy: VllmPolicy) -> None:
    """Return once requests run and have sampled ids; a server counts them now and then."""
    for _ in range(1_000):
        if (await policy.load()).running >= 6:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the server never told of six running requests")


async def _put_back(policy: VllmPolicy, folder: Path, spec: ServerSpec, tmp_path: Path) -> None:
    """Give the server the folder's own weights again, for the next test."""
    own = SyncedPolicy(
        policy,
        load_model(folder),
        FolderTransfer(spec.folder, tmp_path / "back"),
        tolerance=FLOAT32,
    )
    await own.update_weights(None, policy.version)


# Scale of the adapter, r = 8, alpha = 32: 32 / 8 = 4; rank-stabilised 32 / sqrt(8) = 11.3.
@pytest.mark.parametrize("is_stable", [False, True])
async def test_adapter_and_its_merged_weights_sample_alike_g8_g9(
    policy: VllmPolicy, folder: Path, spec: ServerSpec, tmp_path: Path, is_stable: bool
) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(4)
    config = peft.LoraConfig(
        r=8, lora_alpha=32, use_rslora=is_stable, target_modules=["q_proj", "v_proj", "down_proj"]
    )
    model = peft.get_peft_model(load_model(folder), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    base = policy.model
    fine = Tolerance(mean=1e-3, largest=1e-2)
    adapter = SyncedPolicy(policy, model, AdapterTransfer(tmp_path / "adapter"), tolerance=fine)
    version = 10 + is_stable
    await adapter.update_weights(None, version)
    own = probe_logprobs(load_model(folder), policy.probe_ids)
    moved = [abs(a - b) for a, b in zip(await policy.probe(policy.servers[0]), own, strict=True)]
    assert max(moved) > 0.05  # it is the adapter that samples
    policy.model = base
    try:
        merged = SyncedPolicy(
            policy, model, FolderTransfer(spec.folder, tmp_path / "merged"), tolerance=fine
        )
        for again in range(3):
            await merged.update_weights(None, version + 2 * again)
    finally:
        await _put_back(policy, folder, spec, tmp_path)


async def test_run_trains_through_a_server_and_leaves_it_with_its_weights(
    policy: VllmPolicy, folder: Path, spec: ServerSpec, tmp_path: Path
) -> None:
    settings = {
        "envs": ["math/arithmetic"],
        "policy": f"vllm:{spec.url}",
        "run_dir": str(tmp_path / "run"),
        "steps": 2,
        "rollout.groups_per_step": 2,
        "rollout.group_size": 2,
        "rollout.max_new_tokens": 16,
        "limits.max_turns": 2,
        "warmstart.steps": 2,
        "warmstart.demos": 8,
        "warmstart.batch_size": 8,
        "warmstart.warmup_steps": 1,
        "eval.at_start": False,
        "eval.at_end": False,
    }
    try:
        summary = await asyncio.to_thread(train, settings)
        assert summary.steps == 2
        # What it saved is what the server samples with now.
        saved = probe_logprobs(load_model(tmp_path / "run" / "policy"), policy.probe_ids)
        assert await policy.probe(policy.servers[0]) == pytest.approx(saved, abs=1e-3)
        own = probe_logprobs(load_model(folder), policy.probe_ids)
        assert max(abs(a - b) for a, b in zip(saved, own, strict=True)) > 1e-2
    finally:
        await _put_back(policy, folder, spec, tmp_path)


def _children(pid: int) -> list[int]:
    """Return the processes that a process started, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_children(int(child))]
    return found


async def test_killed_engine_gets_its_weights_again_and_its_episodes_go_on(
    spec: ServerSpec, folder: Path, tmp_path: Path, server: ServerProcess
) -> None:
    # The last test of this file: the server of the others is ended, and another takes its place.
    options = VllmOptions(patience_s=400)
    policy = await connect(spec.url, renderer=load_renderer(folder), options=options)
    learner: Any = load_model(folder)
    subject = SyncedPolicy(
        policy, learner, FolderTransfer(spec.folder, tmp_path / "scratch"), tolerance=FLOAT32
    )
    _learn(learner, 1)
    await subject.update_weights(None, 1)
    second: list[ServerProcess] = []

    async def kill() -> None:
        await asyncio.sleep(0.5)
        for pid in _children(server.pid):  # the engine, as the kernel ends it for want of memory
            os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(server.kill)
        second.append(ServerProcess(spec))

    try:
        records, _ = await asyncio.gather(episodes(subject, 24, group="kill"), kill())
        # Every started episode ended as one whole record, sampled with the weights sent last.
        assert len({t.id for t in records}) == 24
        for trajectory in records:
            ids, sampled = whole(trajectory)
            own = tempered(learner, ids, 1.0)
            assert max(abs(own[place - 1] - value) for place, value in sampled) <= 1e-2
        await policy.aclose()
    finally:
        for process in second:
            process.stop()


def test_numbers_of_blocks_are_counted_by_hand() -> None:
    # A guard of the helper above: of 1000 values, the 999th is p99.9.
    assert percentile([float(n) for n in range(1, 1001)], 0.999) == 999.0
    assert list(itertools.pairwise((1, 2, 3))) == [(1, 2), (2, 3)]
