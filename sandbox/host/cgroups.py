"""Control groups, version 1 and 2: bounds on memory, processes and processor time of a whole box.

`find_hierarchy` looks at this machine once; `Hierarchy.make` gives one group for one box. Where no
group can be made, boxes are held by rlimits alone, and `agentgym doctor` says what that leaves out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentgym.sandbox.base import SandboxLimits
from agentgym.sandbox.host.process_tags import is_owner_alive, owned_name

GROUP_PREFIX = "agentgym-"
CPU_PERIOD_US = 100_000
"""The kernel's own default period of the processor quota."""
SUPERVISOR_BYTES = 32 * 1024 * 1024
"""Allowance for the supervisor, so that the whole bound is the programs'."""
SPARE_PROCESSES = 8
"""The supervisor, what launches it, and room to start one more program beside a full box."""
REMOVE_TRIES = 100
"""A group can be removed a moment after its last process is gone; the tries take a second."""


def memory_bound(limits: SandboxLimits) -> int:
    """Return the bytes for a box's group: its programs, its folders in memory, the supervisor."""
    return limits.memory_bytes + limits.disk_bytes * 3 // 2 + SUPERVISOR_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The control group of one box: one folder for each hierarchy of version 1, or one in all."""

    folders: tuple[Path, ...]
    """Folders to remove in the end."""
    entries: tuple[Path, ...]
    """Files to which a process writes 0 to enter."""
    kill_counter: Path | None
    """File whose line `oom_kill` counts kills for memory."""

    def memory_kills(self) -> int:
        """Return how many programs the kernel killed for memory."""
        if self.kill_counter is None:
            return 0
        with contextlib.suppress(OSError, ValueError):
            lines = self.kill_counter.read_text().splitlines()
            return int(dict(line.split() for line in lines).get("oom_kill", 0))
        return 0

    async def remove(self) -> None:
        """Remove the folders, once their processes are gone."""
        for folder in self.folders:
            for _ in range(REMOVE_TRIES):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    await asyncio.sleep(0.01)
                else:
                    break


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Where groups can be made on this machine."""

    version: int
    """1 or 2."""
    parents: Mapping[str, Path]
    """Controller (`memory`, `pids`, `cpu`) -> folder in which groups for it are made."""

    @property
    def holds(self) -> frozenset[str]:
        """Controllers that work here."""
        return frozenset(self.parents)

    def make(self, name: str, limits: SandboxLimits) -> Group:
        """Make the group of one box and set its bounds.

        Raises:
            OSError: If the kernel refuses; nothing is left behind then.
        """
        folders = tuple(dict.fromkeys(parent / name for parent in self.parents.values()))
        made: list[Path] = []
        try:
            for folder in folders:
                folder.mkdir()
                made.append(folder)
            for controller, parent in self.parents.items():
                _bound(parent / name, controller, self.version, limits)
        except OSError:
            for folder in made:
                folder.rmdir()
            raise
        counters = {1: "memory.oom_control", 2: "memory.events"}
        memory = self.parents.get("memory")
        return Group(
            folders=folders,
            entries=tuple(folder / "cgroup.procs" for folder in folders),
            kill_counter=memory / name / counters[self.version] if memory else None,
        )

    def leftovers(self) -> list[Path]:
        """Return folders of boxes whose owner is gone."""
        parents = dict.fromkeys(self.parents.values())
        found = [path for parent in parents for path in parent.glob(GROUP_PREFIX + "*")]
        return [path for path in found if not is_owner_alive(path.name, GROUP_PREFIX)]


def group_name(number: int) -> str:
    """Return the name of this process's `number`-th group."""
    return f"{owned_name(GROUP_PREFIX)}-{number}"


def find_hierarchy(
    mounts: str | None = None, memberships: str | None = None, prefix: Path = Path("/")
) -> Hierarchy | None:
    """Return where this process may make groups; None if nowhere.

    Args:
        mounts: Text of `/proc/self/mountinfo`; read if not given.
        memberships: Text of `/proc/self/cgroup`; read if not given.
        prefix: Folder below which the mount points lie.
    """
    try:
        mounts = Path("/proc/self/mountinfo").read_text() if mounts is None else mounts
        memberships = Path("/proc/self/cgroup").read_text() if memberships is None else memberships
    except OSError:
        return None
    own = _own_paths(memberships)
    for version, finder in ((1, _find_v1), (2, _find_v2)):
        parents = finder(mounts, own, prefix)
        if "memory" in parents or "pids" in parents:
            return Hierarchy(version=version, parents=parents)
    return None


def _own_paths(memberships: str) -> dict[str, str]:
    """Return controller -> path of this process's group; the key "" is version 2."""
    own: dict[str, str] = {}
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    return own


def _mounted(mounts: str, kind: str) -> list[tuple[Path, str, list[str]]]:
    """Return (mount point, root of the mount, options) of every mount of a file system."""
    found: list[tuple[Path, str, list[str]]] = []
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if rest and rest[0] == kind:
            found.append((Path(fields[4]), fields[3], rest[2].split(",")))
    return found


def _folder(point: Path, root: str, path: str, prefix: Path) -> Path:
    """Return where a group's path is seen; a mount may show only what is below its root."""
    inside = path.removeprefix(root) if root != "/" and path.startswith(root) else path
    base = prefix / str(point).lstrip("/")
    folder = base / inside.lstrip("/")
    return folder if folder.is_dir() else base


def _find_v1(mounts: str, own: Mapping[str, str], prefix: Path) -> dict[str, Path]:
    parents: dict[str, Path] = {}
    for point, root, options in _mounted(mounts, "cgroup"):
        for controller in ("memory", "pids", "cpu"):
            if controller in options and controller in own:
                folder = _folder(point, root, own[controller], prefix)
                if os.access(folder, os.W_OK):
                    parents[controller] = folder
    return parents


def _find_v2(mounts: str, own: Mapping[str, str], prefix: Path) -> dict[str, Path]:
    """The own group serves if it may hand controllers down; else the one above (systemd)."""
    for point, root, _ in _mounted(mounts, "cgroup2"):
        folder = _folder(point, root, own.get("", "/"), prefix)
        for parent in (folder, folder.parent):
            if not (parent / "cgroup.procs").exists() or not os.access(parent, os.W_OK):
                continue
            held = _enabled(parent, ("memory", "pids", "cpu"))
            if held:
                return dict.fromkeys(held, parent)
    return {}


def _enabled(parent: Path, wanted: Sequence[str]) -> list[str]:
    """Hand controllers down to groups below `parent`; return those that are."""
    control = parent / "cgroup.subtree_control"
    for name in wanted:
        # Refused where processes are in the group itself, or where it was not delegated.
        with contextlib.suppress(OSError):
            if name not in control.read_text().split():
                control.write_text(f"+{name}")
    try:
        enabled = control.read_text().replace("+", "").split()
    except OSError:
        return []
    return [name for name in wanted if name in enabled]


def _bound(folder: Path, controller: str, version: int, limits: SandboxLimits) -> None:
    """Write the bounds of one controller."""
    memory = str(memory_bound(limits))
    processes = str(limits.max_processes + SPARE_PROCESSES)
    quota = max(1000, int(limits.cpu_cores * CPU_PERIOD_US))
    files = {
        (1, "memory"): [("memory.limit_in_bytes", memory)],
        (2, "memory"): [("memory.max", memory)],
        (1, "pids"): [("pids.max", processes)],
        (2, "pids"): [("pids.max", processes)],
        (1, "cpu"): [("cpu.cfs_period_us", str(CPU_PERIOD_US)), ("cpu.cfs_quota_us", str(quota))],
        (2, "cpu"): [("cpu.max", f"{quota} {CPU_PERIOD_US}")],
    }
    for name, value in files[version, controller]:
        (folder / name).write_text(value)
    if controller == "memory":
        # Without swap accounting the files do not exist, and there is nothing to bound.
        name, value = {1: ("memory.memsw.limit_in_bytes", memory), 2: ("memory.swap.max", "0")}[
            version
        ]
        with contextlib.suppress(OSError):
            (folder / name).write_text(value)
