"""From the name of a policy, as on the command line, to a policy that acts.

What lives in `agentgym.trainers` is reached by name when it is needed.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from agentgym.concurrency.threads import run_coroutine
from agentgym.config.schema import ModelConfig, Precision
from agentgym.config.validation import InvalidInputError, Problem
from agentgym.errors import InfrastructureError, MissingExtraError, PolicyError
from agentgym.policies.base import Policy
from agentgym.policies.expert import ExpertPolicy
from agentgym.records.escape import plain
from agentgym.renderer.base import History
from agentgym.runs.policies import PolicyKind, policy_problems, read_policy

API_KEY = "OPENAI_API_KEY"
"""Variable of the process that holds the key of an OpenAI-compatible server."""


def open_policy(policy: str, *, history: History = History.VERBATIM) -> Policy:
    """Return a policy that acts.

    Args:
        policy: `expert`, `human`, `smollm2`, a transformers folder, a run's folder or one of its
            checkpoints, `vllm:URL[,URL…][#FOLDER]`, or `openai:URL#MODEL`, whose key is taken from
            the variable `OPENAI_API_KEY`.
        history: How earlier turns enter the next prompt.

    Raises:
        InvalidInputError: If it is unknown, knows nothing before it is trained, or names a vLLM
            server that does not answer or does not fit, with the reason.
        MissingExtraError: If it needs torch, which is not installed.
    """
    problems = list(acting_problems(policy))
    if problems:
        raise InvalidInputError(problems)
    match read_policy(policy).kind:
        case PolicyKind.EXPERT:
            return cast("Policy", ExpertPolicy())
        case PolicyKind.HUMAN:
            return _person()
        case PolicyKind.OPENAI:
            return _server(policy.removeprefix("openai:"))
        case PolicyKind.VLLM:
            return run_coroutine(_vllm(policy, history))
        case _:
            return _model(policy, history)


def acting_problems(policy: str) -> Iterator[Problem]:
    """Yield what is wrong with the name of a policy that is to act, without loading it."""
    if read_policy(policy).kind is PolicyKind.TINY:
        text = f"a new {policy!r} model knows nothing; give the folder of a run or of a model"
        yield Problem(key="policy", text=text)
        return
    yield from policy_problems(policy, trained=False)


def load_part(name: str) -> Any:
    """Return the module `name`, which needs the packages that train.

    Raises:
        MissingExtraError: If one of them is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("agentgym"):
            raise
        raise MissingExtraError("a model in this process", extra="train") from error


def _person() -> Policy:
    from agentgym.policies.human import HumanPolicy

    return HumanPolicy(show=lambda text: print(plain(text), end=""))


def _server(address: str) -> Policy:
    from agentgym.policies.openai_compatible import OpenAICompatiblePolicy

    url, _, model = address.partition("#")
    return OpenAICompatiblePolicy(url, model=model, api_key=os.environ.get(API_KEY))


async def _vllm(policy: str, history: History) -> Policy:
    from agentgym.policies.vllm import connect

    try:
        opened = await connect(policy, history=history)
    except (InfrastructureError, PolicyError) as error:
        # Nothing has begun: what is wrong is the address, or the server behind it.
        text = f"{policy!r} cannot be used: {' '.join(str(error).split())}"
        raise InvalidInputError([Problem(key="policy", text=text)]) from error
    await opened.aclose()  # of connections: the next ones belong to the loop that acts
    return opened


def _model(policy: str, history: History) -> Policy:
    models = load_part("agentgym.trainers.models.load")
    torch = load_part("torch")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory(prefix="agentgym-policy-") as folder_of_checkpoint:
        folder: Path = models.resolve_policy(policy, folder=Path(folder_of_checkpoint) / "model")
        model = models.load_model(folder, ModelConfig(), dtype=Precision.AUTO, device=device)
        renderer = load_part("agentgym.renderer.folder").load_renderer(folder, history=history)
    make: Any = load_part("agentgym.policies.transformers").TransformersPolicy
    return make(model, renderer, policy_id=policy)
