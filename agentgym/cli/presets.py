"""`agentgym presets`: list, show, explain."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from agentgym.cli.output import print_json, print_table, say
from agentgym.errors import ConfigError, MissingExtraError
from agentgym.files.plain_yaml import dump_yaml

app = typer.Typer(help="Presets: objectives as data.", rich_markup_mode=None)

PresetName = Annotated[str, typer.Argument(help="A preset, or its YAML file.", metavar="PRESET")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Such as gate.clip_high=0.3.", metavar="[KEY=VALUE]...")
]


@app.callback(invoke_without_command=True)
def default(context: typer.Context) -> None:
    """Presets: list, show, explain."""
    if context.invoked_subcommand is None:
        list_()


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every preset with its source."""
    module = preset_module()
    found = [module.load_preset(name) for name in module.list_presets()]
    header = ["preset", "status", "source"]
    rows = [[preset.name, str(preset.status), str(preset.source)] for preset in found]
    if as_json:
        print_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        print_table(header, rows)


@app.command()
def show(name: PresetName, overrides: Overrides = None) -> None:
    """Show a preset as YAML, with what it extends merged in and overrides applied."""
    preset = _load(name, overrides)
    tree: dict[str, Any] = preset.model_dump(mode="json", exclude_defaults=True)
    say(dump_yaml(tree))


@app.command()
def explain(
    name: PresetName,
    overrides: Overrides = None,
    run: Annotated[
        Path | None, typer.Option(help="A run folder: explain numbers of its episodes instead.")
    ] = None,
    step: Annotated[int | None, typer.Option(help="With --run: which step, from 1.", min=1)] = None,
    group: Annotated[
        str | None,
        typer.Option(help="With --run: which group; the first whose outcomes differ by default."),
    ] = None,
) -> None:
    """Explain a preset: its formula, its bias, and what each part does, in the order of a step.

    With --run and --step, one group that a run trained on: from rewards to token coefficients.
    """
    if run is not None or step is not None or group is not None:
        _explain_run(name, overrides, run, step, group)
        return
    preset = _load(name, overrides)
    say(f"{preset.name} ({preset.status}): {preset.source}\n")
    say(preset.formula)
    say(f"bias:\n{preset.bias}")
    for note in preset.notes:
        say(f"- {note}")
    registry: Any = importlib.import_module("agentgym.trainers.parts.registry")
    rows = [
        [
            path,
            config.part,
            ", ".join(f"{key}={value}" for key, value in config.parameters.items()),
            registry.find(slot, config.part).summary,
        ]
        for path, slot, config in preset.parts()
    ]
    print_table(["slot", "part", "parameters", "what it does"], rows)
    needs = ", ".join(sorted(str(need) for need in preset.needs))
    say(f"needs: {needs or 'nothing beside the batch'}")


def _explain_run(
    name: str, overrides: list[str] | None, run: Path | None, step: int | None, group: str | None
) -> None:
    from agentgym.cli.environments import parse_kwargs

    if run is None or step is None:
        raise ConfigError("numbers of a run need both --run FOLDER and --step N")
    preset_module()  # says what is missing without torch
    module: Any = importlib.import_module("agentgym.trainers.loop.explain_run")
    for line in module.explain_run(run, name, parse_kwargs(overrides), step=step, group=group):
        say(line)


def _load(name: str, overrides: list[str] | None) -> Any:
    from agentgym.cli.environments import parse_kwargs

    return preset_module().load_preset(name, parse_kwargs(overrides))


def preset_module() -> Any:
    """Return `agentgym.trainers.objective.preset`, which needs torch.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        return importlib.import_module("agentgym.trainers.objective.preset")
    except ImportError as error:
        raise MissingExtraError("reading presets", extra="train") from error
