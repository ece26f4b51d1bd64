"""Check an installed wheel: `python -P check_installed.py LIST_OF_TRACKED_FILES`.

Every tracked file is there, no torch is needed or loaded, and one episode runs.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

import agentgym


def missing_files(listing: Path) -> list[str]:
    """Return the tracked files that the installed package lacks (the links themselves apart)."""
    root = Path(str(files("agentgym")))
    names = listing.read_text(encoding="utf-8").split()
    parts = {"agentgym/envs", "agentgym/sandbox", "agentgym/tasks", "agentgym/trainers"}
    return [
        name
        for name in names
        if name not in parts and not (root / name.removeprefix("agentgym/")).is_file()
    ]


def run_one_episode(env_id: str) -> float:
    """Play the env's own expert to the end and return the outcome."""
    env = agentgym.make(env_id)
    try:
        _, info = env.reset(seed=7)
        terminated = truncated = False
        while not (terminated or truncated):
            _, _, terminated, truncated, info = env.step(env.unwrapped.expert())
        return float(info["outcome"])
    finally:
        env.close()


def main() -> None:
    """Exit with 1 and one line on the first thing that is wrong."""
    if missing := missing_files(Path(sys.argv[1])):
        sys.exit(f"not in the wheel: {', '.join(missing)}")
    outcome = run_one_episode("math/arithmetic-v0")
    if outcome != 1.0:
        sys.exit(f"the expert of math/arithmetic-v0 must solve its task (outcome {outcome!r})")
    if "torch" in sys.modules:
        sys.exit("the core loaded torch")
    sys.stdout.write(f"one episode from {agentgym.__file__}: outcome {outcome}\n")


if __name__ == "__main__":
    main()
