"""`agentgym eval`."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentgym.cli.evaluate_settings import is_run, settings_of
from agentgym.cli.output import print_table, say

if TYPE_CHECKING:
    from agentgym.config import RunConfig
    from agentgym.evaluation.result import EvaluationResult
    from agentgym.records import Json


def evaluate(
    *,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENV-or-SUITE,...] [KEY=VALUE]...",
            help="What to evaluate on, such as math/arithmetic:levels=[1,2] or "
            "'envs=[{name: math/arithmetic, kwargs: {levels: [1, 2]}}]'; then settings such as "
            "eval.temperature=0.7.",
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="A run's folder, a model folder, smollm2, expert, vllm:URL.")
    ],
    attempts: Annotated[int | None, typer.Option("-k", help="Attempts at each task.")] = None,
    tasks: Annotated[int | None, typer.Option("-n", help="Tasks at most.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML or TOML file, in place of the run's own.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file of the result; its folder by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, no table.")] = False,
) -> int:
    """Evaluate a policy on held-out tasks: mean and pass@k, with 95 % intervals.

    Where the policy is a run's folder, sampling, limits and history are those of the run's own
    evaluations unless settings or a file say something else. The arguments of an environment are
    those of its entry in the `envs` of settings or file, and those beside its name. Ends with 1 if
    every attempt failed for a reason that is not the agent's.
    """
    from agentgym.runs.folder import check_writable, write_atomic

    resolved = settings_of(words or [], config, policy=policy, attempts=attempts, tasks=tasks)
    sources = _checked_sources(resolved, policy)
    file = out if out is not None else _free_file(resolved, policy)
    check_writable(file)
    result = _run(resolved, sources, policy)
    text = json.dumps(result.to_dict(), indent=2, allow_nan=False) + "\n"
    # Shown first: a disk that is full by now takes nothing away.
    if as_json:
        sys.stdout.write(text)
    else:
        show(result)
    write_atomic(file, text)
    if not as_json:
        say(f"\nresult: {file}")
    return int(_failed_altogether(result))


def _checked_sources(config: RunConfig, policy: str) -> dict[str, Mapping[str, Json]]:
    from agentgym import door
    from agentgym.evaluation.evaluator import own_sources

    sources = own_sources(config)
    door.check_evaluation(sources, policy, config.eval)
    return sources


def _run(
    config: RunConfig, sources: Mapping[str, Mapping[str, Json]], policy: str
) -> EvaluationResult:
    from agentgym import door
    from agentgym.cli.live import progress_sink

    with progress_sink() as sink:
        sink.on_phase("evaluate", None)
        return door.evaluate(
            sources,
            policy,
            settings=config.eval,
            limits=config.limits.to_limits(),
            history=config.rollout.history,
            max_concurrent=config.rollout.max_concurrent,
            retries=config.rollout.retries,
            on_episode=lambda episode: sink.on_step({"outcome": episode.outcome or 0.0}),
        )


def _free_file(config: RunConfig, policy: str) -> Path:
    """Return a file that is not there yet, in the run's own folder where the policy is a run's."""
    from agentgym.runs.folder import RUNS, file_name

    of_run = is_run(Path(policy))
    folder = (Path(policy) if of_run else RUNS) / "evaluations"
    names = [source.name for source in config.envs]
    stem = file_name("-".join(names if of_run else [*names, Path(policy).name]))
    numbers = itertools.count(1)
    return next(f for n in numbers if not (f := folder / f"{stem}-{n}.json").exists())


def show(result: EvaluationResult) -> None:
    """Print a result: how it was made, the headline, its parts, failures and warnings."""
    sampling, counts = result.sampling, result.counts
    say(
        f"{result.policy_id} on {', '.join(result.suites)}, split {result.split}: "
        f"{counts['tasks']} tasks x {result.attempts_per_task}, seed {result.seed}\n"
        f"evaluation's own sampling: temperature {sampling.temperature:g}, top_p "
        f"{sampling.top_p:g}, top_k {sampling.top_k}, min_p {sampling.min_p:g}, max_new_tokens "
        f"{sampling.max_new_tokens}"
    )
    if _failed_altogether(result):
        say("every attempt failed: no mean can be given")
    else:
        _show_means(result)
    failed = [f"{kind} {counts[f'failed:{kind}']}" for kind in ("infrastructure", "timeout")]
    say(f"failed attempts, each counted as 0: {counts['failed']} ({', '.join(failed)})")
    commonest = result.commonest_failure()
    if commonest is not None:
        say(f"the commonest failure, of {commonest[1]} attempts: {' '.join(commonest[0].split())}")
    say(f"cut off at the length limit: {counts['cut_off']} of {counts['attempts']} attempts")
    for warning in result.warnings:
        say(f"warning: {warning}")


def _failed_altogether(result: EvaluationResult) -> bool:
    return result.counts["failed"] == result.counts["attempts"]


def _show_means(result: EvaluationResult) -> None:
    rows = [
        ["mean outcome", str(result.outcome)],
        ["solved", str(result.success)],
        *([f"pass@{k}", str(interval)] for k, interval in result.pass_at.items() if k > 1),
        *([f"  {name}", str(part.outcome)] for name, part in result.breakdowns.items()),
    ]
    print_table(["", "estimate [95 %, clustered by task]"], rows)
    if result.counts["failed"] and result.outcome_without_failures is not None:
        say(f"mean outcome of the attempts that did not fail: {result.outcome_without_failures}")
