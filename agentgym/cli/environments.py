"""`agentgym envs`: list, show, check, play."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from agentgym.cli.output import error_console, print_json, print_table, say, show_report
from agentgym.errors import EnvError, TaskError
from agentgym.records.limits import shorten_middle

if TYPE_CHECKING:
    from agentgym.env.suite import Suite

app = typer.Typer(help="Environments: list, show, check, play.", rich_markup_mode=None)

EnvId = Annotated[
    str,
    typer.Argument(
        help="Such as math/arithmetic or math/arithmetic-v0:levels=[1,2]:tools=false.",
        metavar="ENV[:KEY=VALUE]...",
    ),
]
Kwargs = Annotated[
    list[str] | None,
    typer.Argument(help="Arguments of the environment, apart.", metavar="[KEY=VALUE]..."),
]

_MOST_SHOWN = 4_000
"""Characters of a first observation that are shown."""
_HINT = "An empty line ends your turn, Ctrl-D the episode."


@app.callback(invoke_without_command=True)
def default(context: typer.Context) -> None:
    """Environments: list, show, check, play."""
    if context.invoked_subcommand is None:
        list_()


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every environment that can be made here."""
    from agentgym.env import registry

    broken = registry.conflicts()
    entries = [registry.spec(env_id) for env_id in registry.list_envs() if env_id not in broken]
    if as_json:
        found = [{"id": e.id, "target": e.target, "extra": e.extra} for e in entries]
        print_json([*found, *({"id": name, "error": why} for name, why in broken.items())])
        return
    rows = [[entry.id, entry.target, entry.extra or ""] for entry in entries]
    rows += [[env_id, f"broken: {why}", ""] for env_id, why in broken.items()]
    print_table(["environment", "class", "needs extra"], rows)


@app.command()
def show(env_id: EnvId, kwargs: Kwargs = None) -> None:
    """Show what an environment asks: its prompt, tools, limits and a first observation."""
    env = make(env_id, kwargs)
    try:
        observation, _ = env.reset(seed=0)
        say(f"{env.spec.id}\n")
        described = _description(env)
        if described:
            say(f"{described}\n")
        say(f"system prompt:\n{env.system_prompt or '(none)'}")
        say(f"\nfirst observation of seed 0:\n{shorten_middle(observation, _MOST_SHOWN)}")
        for offered in env.tools:
            say(f"\ntool {offered.name}: {offered.description}")
            say(json.dumps(offered.parameters))
        say(f"\nprotocol: {env.protocol.id}\nlimits: {_bounds(env.limits)}")
        say(f"null score: {env.null_score:g}")
        if env.reward_weights:
            parts = (f"{name} (weight {weight:g})" for name, weight in env.reward_weights.items())
            say(f"named rewards: {', '.join(parts)}")
    finally:
        env.close()


def _description(env: Any) -> str:
    """Return the docstring of the class that the user wrote; what a base says is not about it."""
    wrapped = getattr(env, "foreign", None)  # what an adapter stands before
    kind = cast("type[object]", type(env if wrapped is None else wrapped.unwrapped))
    return inspect.cleandoc(kind.__doc__ or "")


def _bounds(limits: Any) -> str:
    values = {field.name: getattr(limits, field.name) for field in dataclasses.fields(limits)}
    return ", ".join(f"{name} {value:g}" for name, value in values.items() if value is not None)


@app.command()
def check(
    env_id: EnvId,
    kwargs: Kwargs = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that an environment keeps its contract: determinism, limits, scores, probes."""
    from agentgym.checks.env import check_env

    make(env_id, kwargs).close()
    name, arguments = target(env_id, kwargs)
    with error_console().status("") as status:
        report = check_env(
            name,
            env_kwargs=arguments,
            on_check=lambda check: status.update(f"checking: {check}"),
        )
    show_report(report, as_json=as_json)


@app.command()
def play(
    env_id: EnvId,
    kwargs: Kwargs = None,
    seed: Annotated[int, typer.Option(help="Seed of the episode.", min=0)] = 0,
    expert: Annotated[bool, typer.Option("--expert", help="Watch the scripted expert.")] = False,
) -> None:
    """Play an episode yourself, or watch the expert. An empty line ends the input of a turn."""
    env = make(env_id, kwargs)
    try:
        _play(env, seed=seed, is_expert=expert)
    finally:
        env.close()


def _play(env: Any, *, seed: int, is_expert: bool) -> None:
    before = env.limits
    observation, _ = env.reset(seed=seed)
    limit = env.limits.max_turns
    # One that no reset has set bounds every task there is, and says nothing of this one.
    bound = f" of {limit}" if limit is not None and env.limits is not before else ""
    say(env.system_prompt)
    if not is_expert:
        say(f"\n{_HINT}")
    turn = 0
    while True:
        say(f"\n--- turn {turn + 1}{bound}\n{observation}\n")
        _show_picture(env)
        action = _expert_turn(env) if is_expert else _read_turn()
        if action is None:
            say(f"the input ended after {turn} turns; outcome so far {env.outcome():g}")
            return
        if is_expert:
            say(f"> {action}")
        observation, reward, terminated, truncated, info = env.step(action)
        turn += 1
        parts = [f"{name} {value:g}" for name, value in info.get("rewards", {}).items()]
        if parts:
            say(f"rewards: {', '.join(parts)}")
        if terminated or truncated or (limit is not None and turn >= limit):
            outcome = info.get("outcome", env.outcome() if not terminated else reward)
            say(f"\n{observation}\noutcome {outcome:g} after {turn} turns")
            return


def _expert_turn(env: Any) -> str:
    try:
        return str(env.expert())
    except NotImplementedError as error:
        raise EnvError(f"{error}; play it yourself, without --expert") from error


def _show_picture(env: Any) -> None:
    """Say where the picture of what is seen lies, where an environment takes one."""
    take = getattr(env, "screenshot", None)
    path = take() if take is not None else None
    if path is not None:
        say(f"screenshot: {path}\n")


def _read_turn() -> str | None:
    """Return the lines up to an empty one or the end of the input; None if it ends at once."""
    lines: list[str] = []
    try:
        while line := input("> "):
            lines.append(line)
    except EOFError:
        say()  # nobody has ended the prompt's line
        return "\n".join(lines) or None
    return "\n".join(lines)


def parse_kwargs(arguments: list[str] | None) -> dict[str, Any]:
    """Return `key=value` arguments with values as YAML reads them."""
    from agentgym.config.command_line import parse_assignments
    from agentgym.config.yaml_files import parse_value

    tree = parse_assignments(arguments or []).tree
    return {k: parse_value(v) if isinstance(v, str) else v for k, v in tree.items()}


def target(text: str, arguments: list[str] | None = None) -> tuple[str, dict[str, Any]]:
    """Return the name in `ENV[:KEY=VALUE]...` and its arguments, those given apart over them.

    Raises:
        ConfigError: If it names more than one, or has what only a run reads.
    """
    from agentgym.config import InvalidInputError, Problem
    from agentgym.config.command_line import SOURCE_KEYS, parse_sources

    sources = parse_sources(text)
    if len(sources) != 1:
        wrong = f"one environment is taken here (got {text!r})"
        raise InvalidInputError([Problem(text=wrong)])
    (source,) = sources
    unread = [key for key in SOURCE_KEYS if key in source]
    if unread:
        wrong = f"{unread[0]!r} has no effect here: it is read by a run (got {text!r})"
        raise InvalidInputError([Problem(text=wrong)])
    return source["name"], {**source.get("kwargs", {}), **parse_kwargs(arguments)}


def make(env_id: str, arguments: list[str] | None) -> Any:
    """Return an unwrapped environment made with `key=value` arguments.

    Raises:
        ConfigError: If the constructor does not take one of them, or needs others.
    """
    from agentgym.config import InvalidInputError, Problem
    from agentgym.env import registry
    from agentgym.runs.preflight import argument_problems

    name, kwargs = target(env_id, arguments)
    problems = list(argument_problems(name, kwargs))
    if problems:
        raise InvalidInputError(problems)
    try:
        return registry.make(name, **kwargs).unwrapped
    except (EnvError, TaskError, TypeError, ValueError) as error:  # the constructor's own words
        raise InvalidInputError(
            [Problem(text=f"{name}: {' '.join(str(error).split())}")]
        ) from error


def load_suite(name: str) -> Suite:
    """Return a suite, or the tasks that an environment generates.

    Raises:
        ConfigError: If the environment cannot be made without arguments.
    """
    from agentgym.env import registry, suites

    known, kwargs = target(name)
    if known not in suites.list_suites() and registry.is_known(known):
        make(name, None).close()
    return suites.load_suite(known, env_kwargs=kwargs)
