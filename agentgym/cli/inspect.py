"""`agentgym runs`, `compare`, `view`, `plot`: what lies in the folders of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgym.cli.output import complain, print_json, print_table, say
from agentgym.errors import ConfigError, RecordError
from agentgym.redaction import masked

if TYPE_CHECKING:
    from agentgym.evaluation.result import EvaluationResult
    from agentgym.records import Score, Trajectory

_GLIMPSE = 60


# ---------------------------------------------------------------------------------- compare


def compare(
    sides: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN[,RUN...] RUN[,RUN...]...",
            help="Runs or result files; with commas between, several make one side.",
        ),
    ],
    last: Annotated[
        int, typer.Option(help="Evaluations of each run to take the mean of.", min=1)
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare runs by their last evaluations, task by task, each with the first."""
    from agentgym.evaluation.comparison import combine
    from agentgym.evaluation.comparison import compare as difference_of

    if len(sides) < 2:
        raise ConfigError(f"two sides or more can be compared (got {len(sides)})")
    results = [_results_of(side, last) for side in sides]
    _refuse_unlike(sides, results)
    first = sides[0]
    rows: list[dict[str, Any]] = []
    for position, (side, found) in enumerate(zip(sides, results, strict=True)):
        difference = difference_of(results[0], found) if position else None
        rows.append(
            {
                "side": side,
                "evaluations": len(found),
                "outcome": combine(found).to_dict(),
                "difference": difference.interval.to_dict() if difference is not None else None,
                "is_paired": difference.is_paired if difference is not None else None,
            }
        )
    if as_json:
        print_json(rows)
        return
    header = [
        "side",
        "evaluations",
        "mean outcome (95 %)",
        f"difference to {first} (95 %)",
        "tasks",
    ]
    print_table(header, [_row(row) for row in rows])


def _refuse_unlike(sides: list[str], results: list[list[EvaluationResult]]) -> None:
    """Raise where a mean or a difference would be of unlike evaluations."""
    from agentgym.evaluation.comparison import unlike

    base = results[0][0]
    for side, found in zip(sides, results, strict=True):
        for result in found:
            reason = unlike(base, result)
            if reason is not None:
                raise ConfigError(
                    f"{base.name} of {sides[0]} and {result.name} of {side} cannot be compared: "
                    f"{reason}"
                )


def _row(row: dict[str, Any]) -> list[str]:
    difference = row["difference"]
    text = ""
    if difference is not None:
        kind = "paired by task" if row["is_paired"] else "different tasks"
        signed = "{mean:+.3f} [{low:+.3f}, {high:+.3f}]".format(**difference)
        text = f"{signed}, {kind}"
    mean = "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**row["outcome"])
    return [row["side"], str(row["evaluations"]), mean, text, str(row["outcome"]["count"])]


def _results_of(side: str, last: int) -> list[EvaluationResult]:
    from agentgym.runs.folder import read_evaluations
    from agentgym.runs.json_files import read_json

    found: list[EvaluationResult] = []
    for name in side.split(","):
        path = Path(name)
        if path.is_file():
            found.append(result_of(read_json(path), path))
            continue
        own = list(read_evaluations(run_folder(name)).items())
        if not own:
            raise ConfigError(f"{name} has no evaluation; make one with: agentgym eval")
        found += [
            result_of(tree, path / "evaluations" / f"{stem}.json") for stem, tree in own[-last:]
        ]
    return found


def result_of(tree: dict[str, Any], file: Path) -> EvaluationResult:
    """Return the evaluation that a file holds.

    Raises:
        RecordError: If it holds none.
    """
    from agentgym.evaluation.result import EvaluationResult

    try:
        return EvaluationResult.from_dict(tree)
    except RecordError as error:
        raise RecordError(f"{file}: {error}") from error


def run_folder(name: str) -> Path:
    """Return the folder of a run.

    Raises:
        ConfigError: If it is none.
    """
    from agentgym.runs.folder import read_config

    path = Path(name).expanduser()
    read_config(path)
    return path


# ------------------------------------------------------------------------------------- runs


def runs(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="Where they are; runs/ by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the runs in a folder: what each trained, how far it is, and its last evaluation."""
    from agentgym.runs.folder import CONFIG, RUNS

    place = folder if folder is not None else RUNS
    found = sorted(place.glob(f"*/{CONFIG}"), key=lambda file: (file.stat().st_mtime, str(file)))
    if not found and not place.is_dir():
        raise ConfigError(f"there is no folder {str(place)!r}; a run makes it, or name another one")
    header = ["run", "environments", "policy", "preset", "steps", "last evaluation", "state"]
    rows = [_run_row(file.parent) for file in found]
    if as_json:
        print_json([dict(zip(header, row, strict=True)) for row in rows])
    elif rows:
        print_table(header, rows)
    else:
        say(f"no run in {place}")


def _run_row(path: Path) -> list[str]:
    from agentgym.errors import AgentGymError
    from agentgym.runs.folder import read_config, read_evaluations, read_metrics
    from agentgym.runs.status import process_state, read_live

    try:
        config = read_config(path)
        last = list(read_evaluations(path).values())[-1:]
        live = read_live(path)
        steps = max((int(row.get("step", 0)) for row in read_metrics(path)), default=0)
    except AgentGymError as error:
        return [str(path), "", "", "", "", "", " ".join(f"broken: {error}".split())]
    means = ["{mean:.3f} [{low:.3f}, {high:.3f}]".format(**one["outcome"]) for one in last]
    names = ", ".join(source.name for source in config.envs)
    state = process_state(live) if live is not None else "ended"
    of = f"{steps} of {config.steps}"
    return [str(path), names, config.policy, config.preset, of, *(means or [""]), state]


# ------------------------------------------------------------------------------------- view


def view(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run.")],
    episode: Annotated[str | None, typer.Argument(metavar="[ID]", help="One episode.")] = None,
    number: Annotated[int, typer.Option("-n", help="How many, from the end.", min=1)] = 20,
    solved: Annotated[bool | None, typer.Option("--solved/--unsolved", help="Only these.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only failures.")] = False,
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Look at the episodes of a run: a list of the last ones, or one of them turn by turn."""
    from agentgym.records import serialization
    from agentgym.runs.folder import read_scores, read_trajectories

    path = run_folder(run)
    scores = {score.trajectory_id: score for score in read_scores(path)}

    def is_wanted(trajectory: Trajectory) -> bool:
        score = scores.get(trajectory.id)
        is_solved = score is not None and score.is_success
        return (
            (episode is None or trajectory.id == episode)
            and (solved is None or is_solved is solved)
            and (not failed or trajectory.failure is not None)
            and (task is None or trajectory.task_id == task)
        )

    found = [trajectory for trajectory in read_trajectories(path) if is_wanted(trajectory)]
    if episode is not None and not found:
        raise ConfigError(f"{run} has no episode {episode!r}; `agentgym view {run}` lists them")
    if not found:
        complain(f"no episode of {run} matches")
    if as_json:
        for trajectory in found[-number:]:
            say(serialization.dumps(trajectory))
    elif episode is not None:
        _show_episode(found[-1], scores.get(found[-1].id))
    elif found:
        _list_episodes(found[-number:], scores)


def _list_episodes(found: list[Trajectory], scores: dict[str, Score]) -> None:
    rows: list[list[str]] = []
    for trajectory in found:
        score = scores.get(trajectory.id)
        text = trajectory.turns[-1].completion.text if trajectory.turns else ""
        end = trajectory.failure.message if trajectory.failure is not None else text
        rows.append(
            [
                trajectory.id,
                trajectory.task_id,
                f"{score.outcome:g}" if score is not None else "none",
                str(len(trajectory.turns)),
                trajectory.stop_reason.value,
                " ".join(masked(end).split())[-_GLIMPSE:],
            ]
        )
    print_table(["episode", "task", "outcome", "turns", "ended by", "last words"], rows)


def _show_episode(trajectory: Trajectory, score: Score | None) -> None:
    say(f"{trajectory.id}: {trajectory.env_id}, task {trajectory.task_id}, seed {trajectory.seed}")
    if trajectory.system_prompt:
        say(f"\n[system]\n{trajectory.system_prompt}")
    say(f"\n[observation]\n{trajectory.initial_observation}")
    for turn in trajectory.turns:
        cut = ", cut off" if turn.completion.finish_reason == "length" else ""
        tokens = turn.completion.tokens
        size = f", {len(tokens.ids)} tokens" if tokens is not None else ""
        say(f"\n[turn {turn.index}, {turn.completion.source}{size}{cut}]\n{turn.completion.text}")
        kind = f", {turn.error_kind}" if turn.error_kind is not None else ""
        rewards = "".join(f", {name} {value:g}" for name, value in turn.rewards.items())
        say(f"\n[{turn.observation_role}{kind}{rewards}]\n{turn.observation}")
    say(f"\nended by {trajectory.stop_reason}")
    if trajectory.failure is not None:
        say(f"failure: {trajectory.failure.kind} in {trajectory.failure.where}: ")
        say(trajectory.failure.message)
    if score is not None:
        say(f"outcome {score.outcome:g} by {score.scorer_id}, solved: {score.is_success}")


# ------------------------------------------------------------------------------------- plot


def plot(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to draw, without ending; the first run by default.")
    ] = None,
) -> None:
    """Draw the curves of runs as PNG and SVG."""
    from agentgym.runs.plots import draw_runs

    paths = [run_folder(run) for run in runs]
    name = "curves" if len(paths) == 1 else "compared-curves"
    for file in draw_runs(paths, out if out is not None else paths[0] / name):
        say(str(file))
