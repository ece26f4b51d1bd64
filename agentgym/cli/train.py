"""`agentgym train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgym.cli.live import progress_sink
from agentgym.cli.output import INTERRUPTED, complain, print_table, say
from agentgym.errors import AgentGymError, ConfigError

if TYPE_CHECKING:
    from agentgym.config import RunConfig


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENV-or-SUITE,...] [KEY=VALUE]...",
            help="What to train on, such as math/arithmetic:weight=2:levels=[1,2]; then settings.",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML or TOML file.")] = None,
    preset: Annotated[str | None, typer.Option(help="Objective: name or YAML file.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="tiny[:SIZE], smollm2, a run's folder, RUN/checkpoints/step_N, a model folder, "
            "vllm:URL[,URL][#FOLDER]."
        ),
    ] = None,
    allow_leak: Annotated[
        bool | None,
        typer.Option("--allow-leak/--no-allow-leak", help="Held-out tasks may be trained on."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and stop.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the folder given.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> int:
    """Train an agent on environments or suites."""
    from agentgym import api
    from agentgym.config.command_line import is_assignment
    from agentgym.runs.preflight import checked_config

    names = [word for word in words or [] if not is_assignment(word)]
    settings = [word for word in words or [] if is_assignment(word)]
    options = {"preset": preset, "policy": policy, "allow_leak": allow_leak}
    extra: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    if resume:
        path = _resumed_path(names, settings)
        resolved = api.resumed_config(path, assignments=settings, extra=extra)
    else:
        extra |= {"envs": ",".join(names)} if names else {}
        resolved = checked_config(file=config, assignments=settings, extra=extra)
        path = api.run_path(resolved)
    if dry_run:
        _explain(resolved, path)
        return 0
    return _train(resolved, path, is_resumed=resume, is_quiet=quiet)


def _resumed_path(names: list[str], settings: list[str]) -> Path:
    """Return the folder of the run to go on with: the one named, or the setting `run_dir`."""
    given = [word.partition("=")[2] for word in settings if word.startswith("run_dir=")]
    found = [*names, *given]
    if len(found) != 1:
        raise ConfigError(f"--resume needs the folder of one run (got {found!r})")
    return Path(found[0]).expanduser()


def _train(config: RunConfig, path: Path, *, is_resumed: bool, is_quiet: bool) -> int:
    from agentgym import api

    resume = f"agentgym train --resume {path}"
    minutes = config.budget.minutes
    budget_s = minutes * 60 if minutes is not None else None
    with progress_sink(is_quiet=is_quiet, budget_s=budget_s) as sink:
        for line in [f"run folder: {path}"] if is_resumed else _plan(config, path):
            sink.on_note(line)
        try:
            summary = api.run_training(config, path, is_resumed=is_resumed, progress=sink)
        except KeyboardInterrupt:
            sink.on_done({})
            if not (path / "config.yaml").is_file():
                complain("interrupted before there was anything to keep")
                return INTERRUPTED
            api.write_report(path)
            complain(f"interrupted; go on with: {resume}")
            return INTERRUPTED
        except AgentGymError as error:
            sink.on_done({})
            if not isinstance(error, ConfigError) and (path / "config.yaml").is_file():
                complain(f"the run stopped; what it had is kept. Go on with: {resume}")
            raise
    _report(path, summary)
    return 0


def _report(path: Path, summary: Any) -> None:
    from agentgym.runs.folder import read_evaluations

    say(f"done: {summary.steps} steps, {summary.sampled_tokens:,} tokens, {summary.seconds:.0f} s")
    rows = [
        [name, _interval(result["outcome"]), _interval(result["success"])]
        for name, result in read_evaluations(path).items()
    ]
    if rows:
        print_table(["evaluation", "mean outcome (95 %)", "solved (95 %)"], rows)
    say(f"policy: {path / 'policy'}\nreport: {path / 'report.md'}")


def _interval(part: dict[str, float]) -> str:
    return f"{part['mean']:.3f} [{part['low']:.3f}, {part['high']:.3f}]"


def _plan(config: RunConfig, path: Path) -> list[str]:
    """Return what a run will do, a line each, and how its policy was trained before."""
    from agentgym.evaluation.inherited import differences
    from agentgym.runs.dry_run import implications
    from agentgym.runs.folder import read_config
    from agentgym.runs.policies import read_policy

    lines = implications(config)
    width = max(len(line.name) for line in lines)
    found = [f"{'run folder':<{width}}  {path}"]
    found += [f"{line.name:<{width}}  {line.value}" for line in lines]
    run = read_policy(config.policy).run
    if run is not None:
        told = differences(run, read_config(run), config.envs)
        found += [f"{'policy':<{width}}  {line}" for line in told]
    return found


def _explain(config: RunConfig, path: Path) -> None:
    """Print what would be done, and the resolved config that says so."""
    from agentgym.files.plain_yaml import dump_yaml
    from agentgym.redaction import redact

    for line in _plan(config, path):
        say(line)
    say(f"\n{dump_yaml(redact(config.to_dict()))}")
