"""What `agentgym doctor` says about sandboxes, and `clean`: what crashed runs left is removed.

`doctor_report` looks at this machine; each finding is a statement in words, with what to do about
it. A level that cannot be held here is said, not hidden.
"""

from __future__ import annotations

import ctypes
import enum
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentgym.checks.sandbox import SandboxReport, check_sandbox
from agentgym.errors import InfrastructureError
from agentgym.sandbox import registry
from agentgym.sandbox.backends import bubblewrap, docker, subprocess
from agentgym.sandbox.base import Sandbox, SandboxUnavailableError
from agentgym.sandbox.host import seccomp
from agentgym.sandbox.host.process_tags import is_owner_alive
from agentgym.sandbox.inside import supervisor


class Level(enum.StrEnum):
    """How much a finding matters."""

    OK = "ok"
    """Works as it should."""
    NOTE = "note"
    """Works, with a bound that this machine cannot hold, or is an alternative that is not here."""
    PROBLEM = "problem"
    """Does not work; something cannot be used until it is mended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One statement about this machine."""

    topic: str
    """What it is about, such as a kind of sandbox."""
    level: Level
    """How much it matters."""
    text: str
    """The statement."""
    fix: str = ""
    """A command or a sentence that mends it; empty if nothing is to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A thing that a run left which has ended."""

    kind: str
    """`container`, `control group` or `folder`."""
    name: str
    """Id or path."""
    remove: Callable[[], None]
    """Removes it; raises OSError or InfrastructureError if that fails."""


async def doctor_report() -> tuple[Finding, ...]:
    """Return what is installed, what is missing, what is not held here, and what was left."""
    if sys.platform != "linux":
        text = "sandboxes need Linux; everything else works"
        return (Finding(topic="sandboxes", level=Level.NOTE, text=text),)
    findings = [*await _bubblewrap_findings(), *await _docker_findings()]
    if not any(finding.level is Level.OK for finding in findings):
        fix = "apt-get install bubblewrap libseccomp2"
        text = "no sandbox works: environments that run code of an agent cannot be used"
        findings.append(Finding(topic="sandboxes", level=Level.PROBLEM, text=text, fix=fix))
    text = "the kind 'subprocess' isolates nothing; it is used only if you ask for it by name"
    findings.append(Finding(topic="subprocess", level=Level.NOTE, text=text))
    return (*findings, *_leftover_findings())


async def check_backends(only: str = "") -> dict[str, SandboxReport]:
    """Run the contract's checks over every isolating kind of sandbox that works here."""
    reports: dict[str, SandboxReport] = {}
    for name, problem in (await registry.available_backends()).items():
        if problem is None:
            reports[name] = await check_sandbox(registry.sandbox_class(name), only=only)
    return reports


def clean() -> tuple[Finding, ...]:
    """Remove what ended runs left; return what was removed and what could not be."""
    findings: list[Finding] = []
    for left in leftovers():
        try:
            left.remove()
        except (OSError, InfrastructureError) as error:
            text = f"cannot remove the {left.kind} {left.name}: {error}"
            findings.append(Finding(topic="leftovers", level=Level.PROBLEM, text=text))
        else:
            text = f"removed the {left.kind} {left.name}"
            findings.append(Finding(topic="leftovers", level=Level.OK, text=text))
    return tuple(findings)


def leftovers() -> tuple[Leftover, ...]:
    """Return what runs left that have ended. Things of processes that run are not among them."""
    return (*_left_groups(), *_left_folders(), *_left_containers())


# ------------------------------------------------------------------------------ bubblewrap


async def _bubblewrap_findings() -> list[Finding]:
    topic = "bubblewrap"
    try:
        path = bubblewrap.find_bwrap()
        seccomp.filter_program()
    except SandboxUnavailableError as error:
        what, _, fix = str(error).partition(": ")
        return [Finding(topic=topic, level=Level.NOTE, text=what, fix=fix)]
    problem = await _start_problem(bubblewrap.BubblewrapSandbox)
    if problem is not None:
        return [Finding(topic=topic, level=Level.NOTE, text=problem, fix=_namespace_fix())]
    findings = [Finding(topic=topic, level=Level.OK, text=f"works ({path})")]
    return findings + _held(topic) + _kept_apart(topic)


def _namespace_fix() -> str:
    """Return what usually keeps unprivileged user namespaces from working."""
    switches = {
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "kernel.unprivileged_userns_clone=1"),
        "/proc/sys/user/max_user_namespaces": ("0", "user.max_user_namespaces=10000"),
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    }
    for path, (bad, setting) in switches.items():
        if Path(path).is_file() and Path(path).read_text().strip() == bad:
            return f"sysctl -w {setting}"
    return "user namespaces may be forbidden here, as in some containers; use a container engine"


def _held(topic: str) -> list[Finding]:
    """Say what a box cannot be held to on this machine."""
    hierarchy = bubblewrap.find_hierarchy()
    held = hierarchy.holds if hierarchy is not None else frozenset[str]()
    missing = {
        "memory": "memory is bounded for each process, not for a box as a whole: many processes "
        "together can use more",
        "cpu": "processor time is not shared out: a box may use every core up to its time limit",
    }
    fix = "run as root, or in a systemd session which has control groups delegated to it"
    findings = [
        Finding(topic=topic, level=Level.NOTE, text=text, fix=fix)
        for controller, text in missing.items()
        if controller not in held
    ]
    if hierarchy is not None:
        text = f"control groups (version {hierarchy.version}) hold {', '.join(sorted(held))}"
        findings.insert(0, Finding(topic=topic, level=Level.OK, text=text))
    if os.geteuid() != 0:
        text = (
            "boxes run under your own user id inside their namespaces; "
            "only root can give each box an id of its own"
        )
        findings.append(Finding(topic=topic, level=Level.NOTE, text=text))
    return findings


def _kept_apart(topic: str) -> list[Finding]:
    """Say what programs of one box can do to each other on this machine's kernel."""
    version = supervisor.landlock_version(ctypes.CDLL(None, use_errno=True))
    if version >= supervisor.LANDLOCK_WITH_SCOPES:
        return []
    text = "a program that lives on in a box can signal later ones: Landlock here is too old"
    if version < supervisor.LANDLOCK_LEAST:
        text = (
            "a program that lives on in a box can write to the memory and the output of later "
            "ones: this kernel has no usable Landlock"
        )
    fix = "a kernel from 6.12 on with `landlock` among its security modules"
    return [Finding(topic=topic, level=Level.NOTE, text=text, fix=fix)]


# ---------------------------------------------------------------------------------- docker


async def _docker_findings() -> list[Finding]:
    topic = "docker"
    try:
        client = await docker.in_thread(docker.connect)
    except SandboxUnavailableError as error:
        what, _, fix = str(error).partition(": ")
        return [Finding(topic=topic, level=Level.NOTE, text=what, fix=fix)]
    try:
        kind = "podman" if docker.is_podman(client) else "docker"
        engine = f"{kind} {client.version().get('Version', '')}".strip()
    finally:
        client.close()
    problem = await _start_problem(docker.DockerSandbox)
    if problem is None:
        works = Finding(topic=topic, level=Level.OK, text=f"works ({engine})")
        return [works, *_kept_apart(topic)]
    return [Finding(topic=topic, level=Level.NOTE, text=f"{engine}: {problem}")]


async def _start_problem(cls: type[Sandbox]) -> str | None:
    try:
        box = cls()
        try:
            await box.start()
        finally:
            await box.aclose()
    except (SandboxUnavailableError, InfrastructureError) as error:
        return str(error)
    return None


# ------------------------------------------------------------------------------- leftovers


def _leftover_findings() -> list[Finding]:
    names: dict[str, list[str]] = {}
    for left in leftovers():
        names.setdefault(left.kind, []).append(left.name)
    return [
        Finding(
            topic="leftovers",
            level=Level.PROBLEM,
            text=f"{len(found)} of kind '{kind}' left by runs that have ended, such as {found[0]}",
            fix="agentgym doctor --clean",
        )
        for kind, found in names.items()
    ]


def _left_groups() -> list[Leftover]:
    hierarchy = bubblewrap.find_hierarchy()
    folders = hierarchy.leftovers() if hierarchy is not None else []
    return [Leftover(kind="control group", name=str(path), remove=path.rmdir) for path in folders]


def _left_folders() -> list[Leftover]:
    prefix = subprocess.FOLDER_PREFIX
    found = [
        path
        for path in Path(tempfile.gettempdir()).glob(prefix + "*")
        if path.is_dir() and not path.is_symlink() and path.lstat().st_uid == os.geteuid()
        if not is_owner_alive(path.name, prefix)
    ]
    return [Leftover(kind="folder", name=str(path), remove=_remover(str(path))) for path in found]


def _remover(folder: str) -> Callable[[], None]:
    def remove() -> None:
        subprocess.remove_folder(folder)
        if os.path.exists(folder):
            raise OSError("something in it cannot be removed")

    return remove


def _left_containers() -> list[Leftover]:
    try:
        client = docker.connect()
    except SandboxUnavailableError:
        return []
    try:
        listed = client.api.containers(all=True, filters={"label": docker.LABEL})
    finally:
        client.close()
    return [
        Leftover(kind="container", name=row["Id"][:12], remove=_container_remover(row["Id"]))
        for row in listed
        if not is_owner_alive(row["Labels"][docker.LABEL], "")
    ]


def _container_remover(container_id: str) -> Callable[[], None]:
    def remove() -> None:
        client = docker.connect()
        try:
            docker.remove_container(client, container_id)
        finally:
            client.close()

    return remove
