"""Changes of weights on the fake server: order, proof, ties, restarts; and the staging copy."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from agentgym.errors import PolicyError
from agentgym.http import ServerLostError
from agentgym.policies.base import GenerateRequest, TrainablePolicy
from agentgym.policies.vllm import Retries, VllmOptions, VllmPolicy, connect
from agentgym.policies.vllm.wire import Answer
from agentgym.records import Sampling
from agentgym.testing.fake_model import FakeModel
from agentgym.testing.fake_vllm import FakeVllm, Fault, FaultKind
from agentgym.trainers.models.load import load_model
from agentgym.trainers.models.tiny import build_tiny
from agentgym.trainers.weight_sync.staging import (
    Staging,
    checkpoint_names,
    checkpoint_weights,
    named_weights,
    untied_copy,
)
from agentgym.trainers.weight_sync.synced_policy import (
    FLOAT32,
    SyncedPolicy,
    Tolerance,
    probe_logprobs,
)
from agentgym.trainers.weight_sync.transports import AdapterTransfer, FolderTransfer

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
OPTIONS = VllmOptions(
    retries=Retries(first_wait_s=0.001, longest_wait_s=0.01), patience_s=5.0, trust_s=0.0
)
CORPUS = ("The product of 37 and 48 is 1776. hello again ",) * 30


class Bigram(nn.Module):
    """The fake server's model as a learner has it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        tensors = load_file(str(folder / "model.safetensors"))
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding.from_pretrained(tensors[EMBEDDING], freeze=False)
        self.lm_head = nn.Linear(*tensors[HEAD].shape[::-1], bias=False)
        self.lm_head.weight = nn.Parameter(tensors[HEAD])
        self.config = SimpleNamespace(tie_word_embeddings=False)

    def forward(self, input_ids: Tensor) -> Any:
        embedded: Any = self.model.embed_tokens
        return SimpleNamespace(logits=self.lm_head(embedded(input_ids)))

    def learn(self, size: float = 0.3, seed: int = 5) -> None:
        """Take a step of training, so to speak."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter += size * torch.randn(parameter.shape, generator=generator)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), corpus=CORPUS, seed=7)


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """A folder with the two matrices of the fake model."""
    target = tmp_path / "model"
    target.mkdir()
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
    ):
        (target / name).write_bytes((tiny / name).read_bytes())
    generator = torch.Generator().manual_seed(3)
    shape = load_file(str(tiny / "model.safetensors"))[EMBEDDING].shape
    tensors = {n: 0.4 * torch.randn(shape, generator=generator) for n in (EMBEDDING, HEAD)}
    save_file(tensors, str(target / "model.safetensors"), metadata={"format": "pt"})
    return target


@pytest.fixture
async def fake(folder: Path) -> AsyncIterator[FakeVllm]:
    async with FakeVllm(folder, token_s=0.001) as server:
        yield server


@pytest.fixture
async def policy(fake: FakeVllm) -> AsyncIterator[VllmPolicy]:
    opened = await connect(fake.url, options=OPTIONS)
    yield opened
    await opened.aclose()


@pytest.fixture
def learner(folder: Path) -> Bigram:
    return Bigram(folder)


def synced(policy: VllmPolicy, learner: nn.Module, folder: Path, tmp_path: Path) -> SyncedPolicy:
    transfer = FolderTransfer(folder, tmp_path / "scratch")
    return SyncedPolicy(policy, learner, transfer, tolerance=FLOAT32)


def ask(episode: str = "e", **sampling: Any) -> GenerateRequest:
    chosen = Sampling(**{"max_new_tokens": 8, "seed": 3, **sampling})
    return GenerateRequest(
        episode_id=episode, turn=0, messages=(), prompt_ids=(5, 6, 7), sampling=chosen
    )


async def test_new_weights_sample_and_are_proved(
    policy: VllmPolicy, learner: Bigram, folder: Path, tmp_path: Path
) -> None:
    subject = synced(policy, learner, folder, tmp_path)
    assert isinstance(subject, TrainablePolicy)
    assert (await subject.verify()).largest < 1e-5
    learner.learn()
    await subject.update_weights(None, 1)
    assert subject.version == 1
    answer = await subject.generate(ask())
    assert answer.tokens is not None
    assert answer.tokens.behavior_logprobs is not None
    wanted = probe_logprobs(learner, (7, *answer.tokens.ids))
    assert answer.tokens.behavior_logprobs == pytest.approx(wanted, abs=1e-5)
    report = subject.last_sync
    assert report is not None
    assert (report.version, set(report.seconds)) == (
        1,
        {"prepare", "pause", "transfer", "reset", "resume", "prove"},
    )
    inside = sum(v for n, v in report.seconds.items() if n not in {"prepare", "prove"})
    assert report.stopped_s == pytest.approx(inside)


async def test_caches_are_reset_once_after_the_last_tensor_before_the_first_request_g4(
    policy: VllmPolicy, learner: Bigram, folder: Path, tmp_path: Path, fake: FakeVllm
) -> None:
    subject = synced(policy, learner, folder, tmp_path)
    await subject.generate(ask())
    fake.calls.clear()
    learner.learn()
    await subject.update_weights(None, 1)
    steps = [call for call in fake.calls if call not in {"/metrics", "/health"}]
    assert steps == [
        "/pause",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/resume",
        "/v1/completions",  # the proof
    ]


async def test_request_on_its_way_during_a_change_begins_anew_g4(
    policy: VllmPolicy, learner: Bigram, folder: Path, tmp_path: Path
) -> None:
    # It passed the gate under version 0, and would reach its server when the weights are version 1.
    subject = synced(policy, learner, folder, tmp_path)
    answer, is_held = policy.answer, asyncio.Event()

    async def held(episode_id: str, prompt: Sequence[int], sampling: Sampling) -> Answer:
        if not is_held.is_set():
            is_held.set()
            await asyncio.Event().wait()
        return await answer(episode_id, prompt, sampling)

    policy.answer = held
    waiting = asyncio.create_task(subject.generate(ask()))
    await is_held.wait()
    learner.learn()
    await subject.update_weights(None, 1)
    tokens = (await waiting).tokens
    assert tokens is not None
    assert tokens.behavior_logprobs is not None
    assert {run.version for run in tokens.versions} == {1}
    wanted = probe_logprobs(learner, (7, *tokens.ids))
    assert tokens.behavior_logprobs == pytest.approx(wanted, abs=1e-5)


async def test_engines_that_settle_at_the_same_time_let_each_request_begin_anew_once(
    policy: VllmPolicy,
) -> None:
    answer, is_held = policy.answer, asyncio.Event()

    async def held(episode_id: str, prompt: Sequence[int], sampling: Sampling) -> Answer:
        if is_held.is_set():
            return await answer(episode_id, prompt, sampling)
        is_held.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0.01)  # it ends a moment after it was told to

    policy.answer = held
    waiting = asyncio.create_task(policy.generate(ask()))
    await is_held.wait()
    first = asyncio.create_task(policy.settle())
    await asyncio.sleep(0.005)
    await asyncio.gather(first, policy.settle())
    assert (await waiting).tokens is not None


async def test_change_that_does_not_arrive_stops_the_run_g6(
    policy: VllmPolicy, learner: Bigram, folder: Path, tmp_path: Path, fake: FakeVllm
) -> None:
    subject = synced(policy, learner, folder, tmp_path)
    handlers = fake.handlers()

    async def pretend(_: Any) -> tuple[int, object]:
        return 200, {"results": [None]}

    fake.handlers = lambda: {**handlers, ("POST", "/collective_rpc"): pretend}
    learner.learn()
    with pytest.raises(PolicyError, match="does not have the learner's weights"):
        await subject.update_weights(None, 1)
    with pytest.raises(PolicyError, match="nothing samples after a failed change"):
        await subject.generate(ask())


def test_a_coarse_format_may_be_off_by_a_share_of_what_is_unlikely() -> None:
    subject = Tolerance(mean=0.15, largest=1.5, relative=0.05)
    # 5 % of 20 is 1: of the first difference 0.6 is left; the second stays within 5 % of 10.
    assert subject.excess([-21.6, -10.4], [-20.0, -10.0]) == pytest.approx([0.6, 0.0])
    assert subject.excess([-0.3], [-0.1]) == pytest.approx([0.195])
    assert Tolerance(mean=1.0, largest=1.0).excess([-21.6], [-20.0]) == pytest.approx([1.6])


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (math.nan, -2.0),
        (-2.0, math.nan),
        (-math.inf, -2.0),
        (-2.0, -math.inf),
        (-math.inf, -math.inf),
    ],
)
def test_what_is_no_number_is_never_within_a_tolerance(got: float, wanted: float) -> None:
    for relative in (0.0, 0.05):
        bound = Tolerance(mean=1e9, largest=1e9, relative=relative)
        excess = bound.excess([got, -1.0], [wanted, -1.0])
        assert not sum(excess) / 2 <= bound.mean


async def test_small_changes_that_never_arrive_stop_the_run_g6(
    policy: VllmPolicy, learner: Bigram, folder: Path, tmp_path: Path, fake: FakeVllm
) -> None:
    # Within the tolerance of a coarse number format nothing is off; but nothing moves either.
    transfer = FolderTransfer(folder, tmp_path / "scratch")
    coarse = Tolerance(mean=0.15, largest=1.5)
    subject = SyncedPolicy(policy, learner, transfer, tolerance=coarse)
    await subject.update_weights(None, 1)
    handlers = fake.handlers()

    async def pretend(_: Any) -> tuple[int, object]:
        return 200, {"results": [None]}

    fake.handlers = lambda: {**handlers, ("POST", "/collective_rpc"): pretend}
    for version in (2, 3):
        learner.learn(size=1e-4, seed=version)
        await subject.update_weights(None, version)
    learner.learn(size=1e-4, seed=4)
    with pytest.raises(PolicyError, match="changed 3 times"):
        await subject.update_weights(None, 4)


async def test_equal_weights_may_be_sent_again(
    policy: VllmPolicy, learner: Bigram, folder: Path, tmp_path: Path
) -> None:
    subject = synced(policy, learner, folder, tmp_path)
    for version in range(1, 6):
        await subject.update_weights(None, version)
    assert subject.version == 5


async def test_missing_tensor_is_found_before_anything_is_sent_g7(
    policy: VllmPolicy, learner: Bigram, folder: Path, tmp_path: Path, fake: FakeVllm
) -> None:
    subject = synced(policy, learner, folder, tmp_path)
    fake.calls.clear()
    del learner.lm_head
    with pytest.raises(PolicyError, match=r"1 weight tensors are missing, \['lm_head.weight'\]"):
        await subject.update_weights(None, 1)
    assert fake.calls == []
    assert (await policy.generate(ask())).tokens is not None  # the old weights are whole


def test_tied_head_counts_as_sent_and_an_unknown_tensor_does_not_g7(tiny: Path) -> None:
    model: Any = load_model(tiny)
    stored = checkpoint_names(tiny)
    assert HEAD not in stored
    assert HEAD in named_weights(model)
    assert set(checkpoint_weights(model, stored)) == stored
    # With a head in the checkpoint, the tied tensor goes under both names.
    both = checkpoint_weights(model, stored | {HEAD})
    assert both[HEAD].data_ptr() == both[EMBEDDING].data_ptr()
    model.register_parameter("extra", nn.Parameter(torch.zeros(2)))
    with pytest.raises(PolicyError, match=r"not in the engine's checkpoint, \['extra'\]"):
        checkpoint_weights(model, stored)


def test_untied_copy_has_a_head_of_its_own(tiny: Path, tmp_path: Path) -> None:
    copy = untied_copy(tiny, tmp_path / "copy")
    tensors = load_file(str(copy / "model.safetensors"))
    assert torch.equal(tensors[HEAD], tensors[EMBEDDING])
    assert json.loads((copy / "config.json").read_text())["tie_word_embeddings"] is False
    assert untied_copy(copy, tmp_path / "again") == copy
    # The same model: log-probabilities of any text are equal.
    ids = (5, 6, 7, 8)
    assert probe_logprobs(load_model(copy), ids) == pytest.approx(
        probe_logprobs(load_model(tiny), ids), abs=1e-6
    )


def _with_adapter(tiny: Path, **options: Any) -> Any:
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    chosen = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "down_proj"], **options}
    model = peft.get_peft_model(load_model(tiny), peft.LoraConfig(**chosen))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return model


# r = 16, alpha = 32: scale 32 / 16 = 2; rank-stabilised: 32 / sqrt(16) = 8.
@pytest.mark.parametrize(("stable", "scale"), [(False, 2.0), (True, 8.0)])
@pytest.mark.filterwarnings("ignore::FutureWarning:transformers")
def test_merged_weights_have_the_adapters_scale_and_do_not_drift_g8_g9(
    tiny: Path, stable: bool, scale: float
) -> None:
    model = _with_adapter(tiny, use_rslora=stable)
    name = "model.layers.0.self_attn.q_proj.weight"
    layer: Any = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    base = layer.base_layer.weight.detach().clone()
    low, high = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    stored = checkpoint_names(tiny)
    for _ in range(3):
        sent = checkpoint_weights(model, stored)
        torch.testing.assert_close(sent[name], base + scale * high @ low)
        assert torch.equal(layer.base_layer.weight, base)
        assert set(sent) == stored


class Adapted(Bigram):
    """Saves itself whole where peft saves an adapter: what the fake server loads."""

    peft_config: Any = None

    def save_pretrained(self, target: str) -> None:
        Path(target).mkdir(parents=True)
        tensors = {n: t.detach().clone() for n, t in self.state_dict().items()}
        save_file(tensors, f"{target}/model.safetensors", metadata={"format": "pt"})


async def test_adapter_has_a_name_for_each_version_and_nothing_pauses(
    policy: VllmPolicy, folder: Path, tmp_path: Path, fake: FakeVllm
) -> None:
    adapted = Adapted(folder)
    subject = SyncedPolicy(
        policy, adapted, AdapterTransfer(tmp_path / "adapters"), tolerance=FLOAT32
    )
    fake.calls.clear()
    names: list[str] = []
    for version in (1, 2, 3):
        adapted.learn(seed=version)
        await subject.update_weights(None, version)
        names.append(policy.model)
        assert names[-1].endswith(f"-v{version}")
    assert "/pause" not in fake.calls
    # Two stay: requests under way may use the last but one.
    assert fake.adapters == tuple(names[1:])
    assert fake.calls.count("/v1/unload_lora_adapter") == 1


async def test_run_that_goes_on_at_the_same_server_loads_its_version_again(
    fake: FakeVllm, folder: Path, tmp_path: Path
) -> None:
    # As after an end that left no time to unload anything: the server still has version 4.
    adapted, names = Adapted(folder), list[str]()
    for seed in (1, 2):
        policy = await connect(fake.url, options=OPTIONS)
        transfer = AdapterTransfer(tmp_path / "adapters")
        subject = SyncedPolicy(policy, adapted, transfer, tolerance=FLOAT32)
        adapted.learn(seed=seed)
        await subject.update_weights(None, 4)
        names.append(policy.model)
        await policy.aclose()
    assert fake.adapters == tuple(names)


async def test_version_that_is_sent_twice_has_two_names(
    policy: VllmPolicy, folder: Path, tmp_path: Path, fake: FakeVllm
) -> None:
    adapted = Adapted(folder)
    transfer = AdapterTransfer(tmp_path / "adapters")
    subject = SyncedPolicy(policy, adapted, transfer, tolerance=FLOAT32)
    for seed in (1, 2):
        adapted.learn(seed=seed)
        await subject.update_weights(None, 4)
    assert len(set(fake.adapters)) == 2


async def test_adapters_are_unloaded_at_the_end_from_servers_that_still_answer(
    fake: FakeVllm, folder: Path, tmp_path: Path
) -> None:
    async with FakeVllm(folder, token_s=0.001) as second:
        policy = await connect(f"{fake.url},{second.url}", options=OPTIONS)
        adapted = Adapted(folder)
        transfer = AdapterTransfer(tmp_path / "adapters")
        subject = SyncedPolicy(policy, adapted, transfer, tolerance=FLOAT32)
        for version in (1, 2):
            adapted.learn(seed=version)
            await subject.update_weights(None, version)
        assert len(second.adapters) == 2
        await fake.stop()
        await subject.aclose()
        assert second.adapters == ()


async def test_restarted_server_is_compared_with_the_adapter_that_was_sent_g5(
    policy: VllmPolicy, folder: Path, tmp_path: Path, fake: FakeVllm
) -> None:
    adapted = Adapted(folder)
    transfer = AdapterTransfer(tmp_path / "adapters")
    subject = SyncedPolicy(policy, adapted, transfer, tolerance=FLOAT32)
    adapted.learn()
    await subject.update_weights(None, 1)
    before = await subject.generate(ask())
    adapted.learn(seed=9)  # trains on, beside the requests
    await fake.stop()
    await fake.start()
    assert await subject.generate(ask()) == before
    assert fake.adapters == (policy.model,)


async def test_server_that_does_not_say_when_it_began_gets_its_adapter_again(
    policy: VllmPolicy, folder: Path, tmp_path: Path, fake: FakeVllm
) -> None:
    # It counts as another process after each broken connection, and has the adapter already.
    handlers = fake.handlers()

    async def silent(_: Any) -> tuple[int, object]:
        return 200, ""

    fake.handlers = lambda: {**handlers, ("GET", "/metrics"): silent}
    adapted = Adapted(folder)
    transfer = AdapterTransfer(tmp_path / "adapters")
    subject = SyncedPolicy(policy, adapted, transfer, tolerance=FLOAT32)
    adapted.learn()
    await subject.update_weights(None, 1)
    before = await subject.generate(ask())
    fake.inject(Fault(kind=FaultKind.RESET))
    assert await subject.generate(ask()) == before


async def test_failed_check_does_not_change_what_a_restarted_server_is_compared_with(
    policy: VllmPolicy, learner: Bigram, folder: Path, tmp_path: Path, fake: FakeVllm
) -> None:
    subject = synced(policy, learner, folder, tmp_path)
    learner.learn()
    await subject.update_weights(None, 1)
    before = await subject.generate(ask())
    learner.learn(seed=9)
    with pytest.raises(PolicyError, match="does not have the learner's weights"):
        await subject.verify()
    await fake.stop()
    await fake.start()
    assert await subject.generate(ask()) == before


async def test_request_that_is_sent_again_after_a_change_names_the_weights_that_sampled_it(
    policy: VllmPolicy, folder: Path, tmp_path: Path
) -> None:
    # Its connection breaks under version 0; when it is sent again, adapter 1 is there.
    adapted = Adapted(folder)
    subject = SyncedPolicy(
        policy, adapted, AdapterTransfer(tmp_path / "adapters"), tolerance=FLOAT32
    )
    post, breaks = policy._post, asyncio.Event()

    async def broken_once(member: Any, body: Any) -> Any:
        if breaks.is_set():
            return await post(member, body)
        breaks.set()
        adapted.learn()
        await subject.update_weights(None, 1)
        raise ServerLostError("the connection broke")

    policy._post = broken_once
    tokens = (await subject.generate(ask())).tokens
    assert tokens is not None
    assert tokens.behavior_logprobs is not None
    assert {run.version for run in tokens.versions} == {1}
    wanted = probe_logprobs(adapted, (7, *tokens.ids))
    assert tokens.behavior_logprobs == pytest.approx(wanted, abs=1e-5)


async def test_learner_without_an_adapter_cannot_send_one(
    policy: VllmPolicy, learner: Bigram, tmp_path: Path
) -> None:
    subject = SyncedPolicy(policy, learner, AdapterTransfer(tmp_path), tolerance=FLOAT32)
    with pytest.raises(PolicyError, match=r"model\.lora_rank"):
        await subject.update_weights(None, 1)


# ---------------------------------------------------------------------------------- restarts


async def test_restarted_server_gets_the_last_weights_before_any_request_g5(
    policy: VllmPolicy, learner: Bigram, folder: Path, tmp_path: Path, fake: FakeVllm
) -> None:
    subject = synced(policy, learner, folder, tmp_path)
    learner.learn()
    await subject.update_weights(None, 1)
    before = await subject.generate(ask())
    learner.learn(seed=9)  # trains on: what was sent last is what the server must get
    await fake.stop()
    await fake.start()  # with the folder's weights
    fake.calls.clear()
    assert await subject.generate(ask()) == before
    steps = [call for call in fake.calls if call not in {"/metrics", "/health"}]
    assert steps == [
        "/collective_rpc",
        "/reset_prefix_cache",
        "/v1/completions",  # the proof
        "/v1/completions",
    ]


async def test_server_that_dies_in_a_change_gets_it_when_it_is_back(
    policy: VllmPolicy, learner: Bigram, folder: Path, tmp_path: Path, fake: FakeVllm
) -> None:
    subject = synced(policy, learner, folder, tmp_path)
    learner.learn()
    fake.inject(Fault(kind=FaultKind.DIE, path="/collective_rpc"))

    async def restart() -> None:
        await fake.ended.wait()
        await fake.start()

    await asyncio.gather(subject.update_weights(None, 1), restart())
    answer = await subject.generate(ask())
    assert answer.tokens is not None
    assert answer.tokens.behavior_logprobs == pytest.approx(
        probe_logprobs(learner, (7, *answer.tokens.ids)), abs=1e-5
    )


class Joint(FolderTransfer):
    """Stands for a broadcast: all engines take part at once, as members of a group."""

    is_joint = True

    def __init__(self, served: Path, scratch: Path) -> None:
        super().__init__(served, scratch)
        self.forgotten = 0

    def forget(self) -> None:
        self.forgotten += 1


async def test_group_of_a_broadcast_is_forgotten_where_an_engine_was_started_anew(
    policy: VllmPolicy, learner: Bigram, folder: Path, tmp_path: Path, fake: FakeVllm
) -> None:
    # Nobody spoke to the server since, so nothing else has found out.
    transfer = Joint(folder, tmp_path / "scratch")
    subject = SyncedPolicy(policy, learner, transfer, tolerance=FLOAT32)
    for version, wanted in ((1, 0), (2, 0), (3, 1), (4, 1)):
        if version == 3:
            await fake.stop()
            await fake.start()
        learner.learn(seed=version)
        await subject.update_weights(None, version)
        assert transfer.forgotten == wanted


async def test_two_servers_change_together(
    fake: FakeVllm, learner: Bigram, folder: Path, tmp_path: Path
) -> None:
    async with FakeVllm(folder, token_s=0.001) as second:
        policy = await connect(f"{fake.url},{second.url}", options=OPTIONS)
        subject = synced(policy, learner, folder, tmp_path)
        learner.learn()
        asks = [ask(f"e{i}", seed=i, max_new_tokens=60) for i in range(6)]
        answers, _ = await asyncio.gather(
            asyncio.gather(*(subject.generate(one) for one in asks)),
            _soon(subject),
        )
        models = {0: FakeModel.load(folder), 1: FakeModel.load(tmp_path / "scratch/weights-1")}
        for answer in answers:
            assert answer.tokens is not None
            assert answer.tokens.behavior_logprobs is not None
            versions = [r.version for r in answer.tokens.versions for _ in range(r.count)]
            last = 7
            pairs = zip(answer.tokens.ids, answer.tokens.behavior_logprobs, versions, strict=True)
            for token, logprob, version in pairs:
                assert models[version].logprobs(last)[token] == pytest.approx(logprob, abs=1e-5)
                last = token
        await policy.aclose()


async def _soon(subject: SyncedPolicy) -> None:
    await asyncio.sleep(0.02)
    await subject.update_weights(None, 1)


# ----------------------------------------------------------------------------- staging copy


def test_staging_lays_fused_projections_side_by_side() -> None:
    # Rows: q 4, k 2, v 2 of width 3; gate and up 5 each; an embedding of 10 rows, padded to 64.
    prefix = "model.layers.0"
    weights = {
        f"{prefix}.self_attn.v_proj.weight": torch.full((2, 3), 3.0),
        f"{prefix}.self_attn.q_proj.weight": torch.full((4, 3), 1.0),
        f"{prefix}.self_attn.k_proj.weight": torch.full((2, 3), 2.0),
        f"{prefix}.mlp.up_proj.weight": torch.full((5, 3), 5.0),
        f"{prefix}.mlp.gate_proj.weight": torch.full((5, 3), 4.0),
        f"{prefix}.self_attn.q_proj.bias": torch.arange(4.0),
        f"{prefix}.self_attn.k_proj.bias": torch.arange(2.0) + 10,
        f"{prefix}.self_attn.v_proj.bias": torch.arange(2.0) + 20,
        "model.embed_tokens.weight": torch.arange(30.0).reshape(10, 3),
        "model.norm.weight": torch.full((3,), 6.0),
    }
    staging = Staging(weights)
    staging.fill(weights)
    for name, tensor in weights.items():
        assert torch.equal(staging.views[name], tensor)
    fused = staging.fused()
    assert set(fused) == {
        f"{prefix}.self_attn.qkv_proj.weight",
        f"{prefix}.self_attn.qkv_proj.bias",
        f"{prefix}.mlp.gate_up_proj.weight",
        "model.embed_tokens.weight",
        "model.norm.weight",
    }
    qkv = fused[f"{prefix}.self_attn.qkv_proj.weight"]
    assert torch.equal(qkv, torch.tensor([1.0] * 4 + [2.0] * 2 + [3.0] * 2)[:, None].expand(8, 3))
    bias = fused[f"{prefix}.self_attn.qkv_proj.bias"]
    assert bias.tolist() == [0, 1, 2, 3, 10, 11, 20, 21]
    gates = fused[f"{prefix}.mlp.gate_up_proj.weight"]
    assert torch.equal(gates, torch.tensor([4.0] * 5 + [5.0] * 5)[:, None].expand(10, 3))
    embedding = fused["model.embed_tokens.weight"]
    assert embedding.shape == (64, 3)
    assert torch.equal(embedding[:10], weights["model.embed_tokens.weight"])
    assert not embedding[10:].any()


def test_staging_copies_in_the_engines_number_format() -> None:
    weights = {"a.weight": torch.tensor([[1.00390625, 2.0]]), "b.weight": torch.ones(3)}
    staging = Staging(weights, dtype=torch.bfloat16)
    staging.fill(weights)
    # 1 + 2^-8 lies half way between two numbers of bfloat16 and goes to the even one, 1.
    assert staging.views["a.weight"].tolist() == [[1.0, 2.0]]
    assert staging.layout() == {
        "names": ["a.weight", "b.weight"],
        "dtype_names": ["bfloat16", "bfloat16"],
        "shapes": [[1, 2], [3]],
    }
    kept = staging.views["b.weight"].clone()
    weights["b.weight"].mul_(2)  # the learner trains on
    assert torch.equal(staging.views["b.weight"], kept)
