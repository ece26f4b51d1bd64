"""What the host does around boxes: control groups, user ids, the filter, leftovers, the doctor."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agentgym.sandbox import doctor
from agentgym.sandbox.backends import bubblewrap, docker, subprocess
from agentgym.sandbox.base import MIB, SandboxLimits, SandboxUnavailableError
from agentgym.sandbox.host import cgroups, seccomp, uids
from agentgym.sandbox.host.process_tags import is_owner_alive, owned_name, start_time

LIMITS = SandboxLimits(memory_bytes=100 * MIB, disk_bytes=20 * MIB, max_processes=30, cpu_cores=0.5)
MEMORY = str((100 + 20 + 10 + 32) * MIB)
"""Programs, work folder, two scratch folders of a quarter each, the supervisor."""


def tree(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def mounts(*lines: tuple[str, str, str, str]) -> str:
    """Lines of mountinfo from (mount point, root, type, options)."""
    return "".join(
        f"30 20 0:26 {root} {point} rw shared:1 - {kind} {kind} {options}\n"
        for point, root, kind, options in lines
    )


def test_version_1_groups_bound_memory_processes_and_cpu(tmp_path: Path) -> None:
    for name in ("memory/own", "pids", "cpu"):
        (tmp_path / "sys" / name).mkdir(parents=True)
    hierarchy = cgroups.find_hierarchy(
        mounts(
            ("/sys/memory", "/", "cgroup", "rw,memory"),
            ("/sys/pids", "/", "cgroup", "rw,pids"),
            ("/sys/cpu", "/", "cgroup", "rw,cpu,cpuacct"),
        ),
        "4:memory:/own\n8:pids:/\n1:cpu,cpuacct:/\n",
        tmp_path,
    )
    assert hierarchy is not None
    assert (hierarchy.version, hierarchy.holds) == (1, {"memory", "pids", "cpu"})
    group = hierarchy.make("box", LIMITS)
    memory, cpu = tmp_path / "sys/memory/own/box", tmp_path / "sys/cpu/box"
    assert (memory / "memory.limit_in_bytes").read_text() == MEMORY
    assert (tmp_path / "sys/pids/box/pids.max").read_text() == "38"
    assert (cpu / "cpu.cfs_quota_us").read_text() == "50000"
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert group.memory_kills() == 3
    assert group.entries[0] == memory / "cgroup.procs"


def test_version_2_groups_use_the_parent_where_processes_are_in_the_own_one(
    tmp_path: Path,
) -> None:
    """As in a systemd session: the leaf hands nothing down, the slice above it does."""
    root = tmp_path / "cg/user.slice"
    tree(
        root,
        {
            "cgroup.procs": "",
            "cgroup.subtree_control": "cpu memory pids\n",
            "leaf/cgroup.procs": "1\n",
            "leaf/cgroup.subtree_control": "",
        },
    )
    (root / "leaf/cgroup.subtree_control").unlink()
    hierarchy = cgroups.find_hierarchy(
        mounts(("/cg", "/", "cgroup2", "rw")), "0::/user.slice/leaf\n", tmp_path
    )
    assert hierarchy is not None
    assert (hierarchy.version, dict(hierarchy.parents)) == (
        2,
        dict.fromkeys(("memory", "pids", "cpu"), root),
    )
    group = hierarchy.make("box", LIMITS)
    assert group.folders == (root / "box",)
    assert (root / "box/memory.max").read_text() == MEMORY
    assert (root / "box/cpu.max").read_text() == "50000 100000"
    assert (root / "box/memory.swap.max").read_text() == "0"
    assert group.memory_kills() == 0


def test_no_usable_hierarchy_is_none(tmp_path: Path) -> None:
    (tmp_path / "cg").mkdir()
    found = cgroups.find_hierarchy(mounts(("/cg", "/", "cgroup2", "rw")), "0::/\n", tmp_path)
    assert found is None


def test_a_group_that_cannot_be_bounded_leaves_nothing(tmp_path: Path) -> None:
    hierarchy = cgroups.Hierarchy(version=3, parents={"memory": tmp_path})
    with pytest.raises(KeyError):
        hierarchy.make("box", LIMITS)
    hierarchy = cgroups.Hierarchy(version=1, parents={"memory": tmp_path / "missing"})
    with pytest.raises(OSError, match="missing"):
        hierarchy.make("box", LIMITS)
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "box"])


def test_leftover_groups_are_those_whose_owner_is_gone(tmp_path: Path) -> None:
    mine = cgroups.group_name(7)
    for name in (mine, f"agentgym-{os.getpid()}-1-7", "agentgym-x", "other"):
        (tmp_path / name).mkdir()
    hierarchy = cgroups.Hierarchy(version=1, parents={"pids": tmp_path})
    left = sorted(path.name for path in hierarchy.leftovers())
    assert left == sorted([f"agentgym-{os.getpid()}-1-7", "agentgym-x"])


def test_owners_are_told_apart_by_their_start() -> None:
    """A later process with the same id is another one."""
    assert is_owner_alive(owned_name("p-"), "p-")
    assert is_owner_alive(owned_name("p-") + "-12", "p-")
    assert not is_owner_alive(f"p-{os.getpid()}-1", "p-")
    assert start_time(2**22 + 1) is None


@pytest.mark.parametrize(
    ("uid_map", "first"),
    [
        ("0 0 4294967295\n", 1_900_000_000),
        ("0 100000 65536\n", 65536 - 8192),
    ],
)
def test_user_ids_fit_what_is_mapped(uid_map: str, first: int) -> None:
    assert uids._first_uid(uid_map) == first


def test_user_ids_are_had_once_at_a_time() -> None:
    one, two = uids.lease_uid(), uids.lease_uid()
    assert one.uid != two.uid
    one.release()
    one.release()
    two.release()


# --------------------------------------------------------------------------------- filter


def test_the_filter_denies_what_it_must() -> None:
    denied = {rule.call for rule in seccomp.rules() if rule.condition is None}
    assert {"unshare", "mount", "ptrace", "keyctl", "bpf", "setns", "clone3"} <= denied


def test_clone_is_denied_by_flag_and_sockets_by_family() -> None:
    flags = {r.condition.value for r in seccomp.rules() if r.call == "clone" and r.condition}
    assert 0x10000000 in flags  # CLONE_NEWUSER
    families = {
        r.condition.value
        for r in seccomp.rules()
        if r.call == "socket" and r.condition and r.condition.operator == "EQ"
    }
    assert {17, 38, 40} <= families
    assert families.isdisjoint({1, 2, 10, 16})


def test_the_filter_of_engines_says_the_same() -> None:
    profile = json.loads(seccomp.docker_profile())
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    assert len(profile["syscalls"]) == len(seccomp.rules())
    clone3 = next(entry for entry in profile["syscalls"] if entry["names"] == ["clone3"])
    assert clone3 == {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}
    user = next(e for e in profile["syscalls"] if e["names"] == ["clone"] and "args" in e)
    assert user["args"][0]["op"] == "SCMP_CMP_MASKED_EQ"
    assert user["args"][0]["value"] == user["args"][0]["valueTwo"]


def test_a_missing_binding_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyseccomp", None)
    with pytest.raises(SandboxUnavailableError, match=r"pip install 'agentgym-rl-kit\[sandbox\]'"):
        seccomp.load_binding()


# --------------------------------------------------------------------------------- doctor


async def test_doctor_says_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda *args, **kwargs: None)
    monkeypatch.setattr(docker, "default_engine", lambda: None)
    findings = await doctor.doctor_report()
    by_topic = {finding.topic: finding for finding in findings}
    assert by_topic["bubblewrap"].fix == "apt-get install bubblewrap"
    assert "apt-get install podman" in by_topic["docker"].fix
    assert by_topic["sandboxes"].level is doctor.Level.PROBLEM
    assert "isolates nothing" in by_topic["subprocess"].text


async def test_doctor_says_what_is_not_held_without_control_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bubblewrap, "find_hierarchy", lambda: None)
    texts = [finding.text for finding in doctor._held("bubblewrap")]
    assert any("memory is bounded for each process" in text for text in texts)
    assert any("processor time is not shared out" in text for text in texts)


def test_clean_removes_what_ended_runs_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(doctor, "_left_containers", list)
    monkeypatch.setattr(doctor, "_left_groups", list)
    prefix = subprocess.FOLDER_PREFIX
    mine, left = tmp_path / owned_name(prefix), tmp_path / f"{prefix}1-1-abc"
    mine.mkdir()
    (left / "deep" / "er").mkdir(parents=True)
    (left / "deep" / "f").write_text("x")
    (left / "deep").chmod(0o500)
    assert [item.name for item in doctor.leftovers()] == [str(left)]
    assert [finding.level for finding in doctor.clean()] == [doctor.Level.OK]
    assert mine.is_dir()
    assert not left.exists()
    assert doctor.clean() == ()


@pytest.mark.service
async def test_doctor_finds_bubblewrap_working() -> None:
    findings = await doctor.doctor_report()
    levels = {finding.topic: finding.level for finding in findings if "works" in finding.text}
    assert levels["bubblewrap"] is doctor.Level.OK


@pytest.mark.service
async def test_a_container_of_an_ended_run_is_found_and_removed(
    make_isolating_box, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = make_isolating_box()
    if box.name != "docker":
        pytest.skip("bubblewrap boxes end with their host")
    client = await docker.in_thread(docker.connect, box._engine)
    monkeypatch.setattr(docker, "default_engine", lambda: box._engine)
    container = await docker.in_thread(
        lambda: client.containers.create(
            docker.IMAGE, ["sleep", "60"], labels={docker.LABEL: "1-1"}, network_mode="none"
        )
    )
    try:
        left = [item for item in doctor.leftovers() if item.kind == "container"]
        assert container.id[:12] in [item.name for item in left]
        async with box:
            own = box._channel._container.id[:12]
            assert own not in [item.name for item in doctor.leftovers()]
        doctor.clean()
        assert container.id[:12] not in [item.name for item in doctor.leftovers()]
    finally:
        client.close()
