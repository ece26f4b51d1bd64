"""`agentgym eval`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentgym.cli.output import complain, print_table, say
from agentgym.redaction import masked_tree
from agentgym.runs.policies import POLICY_HELP, PolicyKind

if TYPE_CHECKING:
    from agentgym.config import RunConfig
    from agentgym.evaluation.result import Breakdown, EvaluationResult
    from agentgym.records import Trajectory
    from agentgym.runs.inputs import Asked
    from agentgym.runs.reserved import ReservedFile

_NAMED = 3
"""Suites that the name of a result's file has; the result has all of them."""
_SUITE = "suite="
"""Begins the names of the parts of a result that are one suite each."""


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
    policy: Annotated[str, typer.Option(help=POLICY_HELP)],
    attempts: Annotated[int | None, typer.Option("-k", help="Attempts at each task.")] = None,
    tasks: Annotated[int | None, typer.Option("-n", help="Tasks of each suite at most.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Split of the suites; held_out if none is given.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML or TOML file, in place of the run's own.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file of the result; its folder by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, no table.")] = False,
) -> int:
    """Evaluate a policy on held-out tasks: mean and pass@k, with 95 % intervals.

    If the policy is of a run, its environments have the run's arguments, and sampling, limits,
    history and seed are those of the run's own evaluations, unless settings or a file say something
    else. Other arguments of an environment stand beside its name, or in its entry in the `envs` of
    settings or file. Ends with 1 if every attempt failed for a reason that is not the agent's.
    """
    from agentgym.cli.evaluate_settings import run_lines, settings_of

    options = {"eval.attempts": attempts, "eval.tasks": tasks, "eval.split": split}
    resolved = settings_of(words or [], config, policy=policy, options=options)
    asked = _checked(resolved, policy)
    with _reserved(resolved, policy, out) as file:
        for line in run_lines(resolved, policy) if config is None else ():
            (complain if as_json else say)(line)
        result = _run(resolved, asked, policy)
        has_failed = _failed_altogether(result)
        text = json.dumps(masked_tree(result.to_dict()), indent=2, allow_nan=False) + "\n"
        # Shown first: a disk that is full by now takes nothing away.
        if as_json:
            sys.stdout.write(text)
        else:
            show(result)
        if not has_failed:
            file.write(text)
    if not as_json and not has_failed:
        say(f"\nresult: {file.path}")
    return int(has_failed)


def _checked(config: RunConfig, policy: str) -> Asked:
    from agentgym import api
    from agentgym.evaluation.evaluator import own_sources
    from agentgym.runs.inputs import Asked

    asked = Asked(
        sources=own_sources(config),
        settings=config.eval,
        limits=config.limits.to_limits(),
        history=config.rollout.history,
    )
    api.check_evaluation(asked, policy)
    return asked


def _run(config: RunConfig, asked: Asked, policy: str) -> EvaluationResult:
    from agentgym import api
    from agentgym.cli.live import progress_sink

    with progress_sink() as sink:

        def told(episode: Trajectory) -> None:
            if policy == PolicyKind.HUMAN:  # who asks to play wants to know at once
                say(_ending(episode))
            else:
                sink.on_step({"outcome": episode.outcome or 0.0})

        sink.on_phase("evaluate", None)
        return api.run_evaluation(
            asked,
            policy,
            max_concurrent=config.rollout.max_concurrent,
            retries=config.rollout.retries,
            on_episode=told,
        )


def _ending(episode: Trajectory) -> str:
    """Return how an episode ended, for the person who played it."""
    if episode.outcome is None:
        return f"no outcome: {episode.failure.message if episode.failure else 'it was cancelled'}"
    return f"outcome {episode.outcome:g} after {len(episode.turns)} turns ({episode.stop_reason})"


def _reserved(
    config: RunConfig, policy: str, out: Path | None
) -> contextlib.AbstractContextManager[ReservedFile]:
    """Take the file of the result: the one given, or a new one in the folder of the run."""
    from agentgym.runs.folder import RUNS, file_name
    from agentgym.runs.policies import read_policy
    from agentgym.runs.reserved import reserve, reserve_new

    if out is not None:
        return reserve(out)
    run = read_policy(policy).run
    names = [source.name for source in config.envs]
    more = [f"and-{len(names) - _NAMED}-more"] if len(names) > _NAMED else []
    parts = [*names[:_NAMED], *more, *([] if run is not None else [Path(policy).name])]
    return reserve_new((run or RUNS) / "evaluations", file_name("-".join(parts)))


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
    of_suites = {k: v for k, v in result.breakdowns.items() if k.startswith(_SUITE)}
    over = f" over all {len(result.suites)} suites" if of_suites else ""
    rows = [
        [f"mean outcome{over}", str(result.outcome)],
        [f"solved{over}", str(result.success)],
        *([f"pass@{k}", str(interval)] for k, interval in result.pass_at.items() if k > 1),
        *(
            [f"  {name}", str(part.outcome)]
            for name, part in result.breakdowns.items()
            if name not in of_suites
        ),
    ]
    if of_suites:
        _show_card(of_suites)
    print_table(["", "estimate [95 %, clustered by task]"], rows)
    if result.counts["failed"] and result.outcome_without_failures is not None:
        say(f"mean outcome of the attempts that did not fail: {result.outcome_without_failures}")


def _show_card(of_suites: Mapping[str, Breakdown]) -> None:
    """Print one row a suite."""
    rows = [
        [
            name.removeprefix(_SUITE),
            str(part.outcome.count),
            str(part.outcome),
            str(part.success),
            str(part.failures),
        ]
        for name, part in of_suites.items()
    ]
    print_table(["suite", "tasks", "mean outcome [95 %]", "solved [95 %]", "failed"], rows)
