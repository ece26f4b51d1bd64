"""`agentgym init`: a new environment package that works at once."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path
from typing import Annotated

import typer

from agentgym.cli.output import say
from agentgym.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9_]*")

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["agentgym-rl-kit"]

[project.entry-points."agentgym.envs"]
"{name}/{env}-v0" = "{name}.env:{class}"

[tool.hatch.build.targets.wheel]
packages = ["{name}"]
"""

_PACKAGE = '"""Environments of {name}."""\n'

_ENV = '''\
"""`{name}/backwards-v0`: write a word backwards."""

from agentgym import Task, TextEnv


class BackwardsEnv(TextEnv):
    system_prompt = "Write the word backwards, and nothing else."

    def sample_task(self, rng):
        word = "".join(rng.sample("abcdefghijklmnopqrstuvwxyz", 6))
        return Task(id=word, env_id=self.env_id, prompt=word, answers=(word[::-1],))

    def start(self, task, rng):
        return task.prompt

    def respond(self, action):
        return self.finish(outcome=float(action.strip() == self.task.answers[0]))

    def expert(self):
        return self.task.answers[0]
'''

_TOOL_ENV = '''\
"""`{name}/prices-v0`: look two prices up and add them."""

from agentgym import Task, ToolEnv, ToolError, tool

THINGS = ["lamp", "rope", "map", "cup", "key", "drum", "coin", "book"]


class PricesEnv(ToolEnv):
    # The tools and the form of an answer are told after this.
    system_prompt = "Say what the two things cost together."

    def sample_task(self, rng):
        prices = {thing: rng.randrange(100, 1000) for thing in rng.sample(THINGS, 2)}
        return Task(
            id="-".join(f"{thing}{price}" for thing, price in prices.items()),
            env_id=self.env_id,
            prompt=" and ".join(prices),
            answers=(str(sum(prices.values())),),
            payload=prices,
        )

    def start(self, task, rng):
        self.unknown = list(task.payload)
        return task.prompt

    @tool
    def price(self, thing: str) -> int:
        """Return what a thing costs.

        Args:
            thing: Such as lamp.
        """
        if thing not in self.task.payload:
            raise ToolError(f"there is no {thing!r}, only {self.task.prompt}")
        self.unknown = [other for other in self.unknown if other != thing]
        return self.task.payload[thing]

    def grade(self, answer):
        return float(answer == self.task.answers[0])

    def expert(self):
        if not self.unknown:
            return self.protocol.format_answer(self.task.answers[0])
        return self.protocol.format_call("price", {"thing": self.unknown[0]})
'''

_TEST = '''\
"""The environment keeps the contract, and its expert solves it."""

import agentgym

ENV = "{name}/{env}-v0"


def test_environment_keeps_the_contract():
    agentgym.check_env(ENV).raise_if_failed()


def test_expert_solves_every_task():
    episodes = agentgym.rollout(ENV, "expert", tasks=10)
    assert [episode.outcome for episode in episodes] == [1.0] * 10
'''

_README = """\
# {name}

An environment package for AgentGym.

    pip install -e .
    agentgym envs play {name}/{env}-v0 --expert
    agentgym envs check {name}/{env}-v0
    agentgym train {name}/{env}-v0 --policy tiny warmstart.steps=400 steps=20 eval.every=10
    agentgym eval {name}/{env}-v0 --policy runs/{env}-v0-grpo-1
"""

FILES = {
    "pyproject.toml": _PYPROJECT,
    "README.md": _README,
    "{name}/__init__.py": _PACKAGE,
    "{name}/env.py": "",
    "tests/test_env.py": _TEST,
}
"""Path in the new folder -> its text; empty for the environment, of which there are two kinds."""
_TEXT = ("backwards", "BackwardsEnv", _ENV)
_TOOLS = ("prices", "PricesEnv", _TOOL_ENV)


def init(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the package: a lower-case word.")
    ],
    folder: Annotated[
        Path | None, typer.Option(help="Where to make it; a folder of that name by default.")
    ] = None,
    tools: Annotated[
        bool, typer.Option("--tools", help="An environment with a tool; else text in, text out.")
    ] = False,
) -> None:
    """Make a new environment package: environment, entry point, test."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(f"a package's name is a lower-case word such as 'my_envs' (got {name!r})")
    target = folder if folder is not None else Path(name)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not an empty folder; give another --folder")
    found = importlib.util.find_spec(name)
    if found is not None and found.origin is not None:
        raise ConfigError(
            f"a module {name!r} is here already ({found.origin}), and would be imported in its "
            "place: take another name"
        )
    try:
        _write(target, name, _TOOLS if tools else _TEXT)
    except OSError as error:
        raise ConfigError(
            f"'--folder' must be one that can be made and written to (got {str(target)!r}: "
            f"{error.strerror})"
        ) from error
    say(f"made {target}; next:")
    env = (_TOOLS if tools else _TEXT)[0]
    say(f"  pip install -e {target}\n  agentgym envs play {name}/{env}-v0 --expert")


def _write(target: Path, name: str, kind: tuple[str, str, str]) -> None:
    env, env_class, code = kind
    marks = {"{name}": name, "{env}": env, "{class}": env_class}
    for path, text in FILES.items():
        file = target / path.format(name=name)
        file.parent.mkdir(parents=True, exist_ok=True)
        written = text or code
        for mark, value in marks.items():  # not str.format: code has braces of its own
            written = written.replace(mark, value)
        file.write_text(written, encoding="utf-8")
