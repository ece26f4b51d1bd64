"""From the name of a policy, as on the command line, to a policy that acts.

What lives in `agentgym.trainers` is reached by name when it is needed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from agentgym.blocking import run_coroutine
from agentgym.config.preflight import policy_problems
from agentgym.config.problems import InvalidInputError, Problem
from agentgym.config.schema import ModelConfig, Precision
from agentgym.errors import MissingExtraError
from agentgym.policies.expert import ExpertPolicy
from agentgym.policy import Policy
from agentgym.renderer.base import History
from agentgym.runs.text import plain

API_KEY = "OPENAI_API_KEY"
"""Variable of the process that holds the key of an OpenAI-compatible server."""


def open_policy(policy: str, *, history: History = History.VERBATIM) -> Policy:
    """Return a policy that acts.

    Args:
        policy: `expert`, `human`, `smollm2`, a transformers folder, a run's folder,
            `vllm:URL[,URL…][#FOLDER]`, or `openai:URL#MODEL`, whose key is taken from the variable
            `OPENAI_API_KEY`.
        history: How earlier turns enter the next prompt.

    Raises:
        InvalidInputError: If it is unknown, or knows nothing before it is trained.
        MissingExtraError: If it needs torch, which is not installed.
        InfrastructureError: If a vLLM server cannot be reached.
        PolicyError: If a vLLM server does not fit, with the reason.
    """
    problems = list(acting_problems(policy))
    if problems:
        raise InvalidInputError(problems)
    if policy == "expert":
        return cast("Policy", ExpertPolicy())
    if policy == "human":
        return _person()
    if policy.startswith("openai:"):
        return _server(policy.removeprefix("openai:"))
    if policy.startswith("vllm:"):
        return run_coroutine(_vllm(policy, history))
    return _model(policy, history)


def acting_problems(policy: str) -> Iterator[Problem]:
    """Yield what is wrong with the name of a policy that is to act, without loading it."""
    if policy.partition(":")[0] == "tiny":
        text = f"a new {policy!r} model knows nothing; give the folder of a run or of a model"
        yield Problem(key="policy", text=text)
        return
    yield from policy_problems(str(model_folder(policy)), trained=False)


def model_folder(policy: str) -> str | Path:
    """Return the model folder inside a run's folder, or `policy` itself where it is no run."""
    inside = Path(policy) / "policy"
    return inside if (Path(policy) / "config.yaml").is_file() and inside.is_dir() else policy


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

    opened = await connect(policy, history=history)
    await opened.aclose()  # of connections: the next ones belong to the loop that acts
    return opened


def _model(policy: str, history: History) -> Policy:
    models = load_part("agentgym.trainers.models.load")
    torch = load_part("torch")
    folder: Path = models.resolve_policy(str(model_folder(policy)))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = models.load_model(folder, ModelConfig(), dtype=Precision.AUTO, device=device)
    renderer = load_part("agentgym.renderer.folder").load_renderer(folder, history=history)
    make: Any = load_part("agentgym.policies.transformers").TransformersPolicy
    return make(model, renderer, policy_id=policy)
