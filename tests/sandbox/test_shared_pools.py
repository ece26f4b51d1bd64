"""Boxes for synchronous callers and for callers in several loops; names of kinds."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from agentgym.errors import InfrastructureError, RegistryError
from agentgym.sandbox import BACKENDS, registry
from agentgym.sandbox.backends.null import NullSandbox
from agentgym.sandbox.base import Sandbox, SandboxLimits, SandboxUnavailableError
from agentgym.sandbox.shared_pools import Portal


@pytest.fixture
def null_portal(monkeypatch: pytest.MonkeyPatch):
    """A portal whose boxes run nothing."""
    monkeypatch.setitem(BACKENDS, "null", "agentgym.sandbox.backends.null:NullSandbox")
    portal = Portal()
    yield portal
    portal.close()
    assert not portal._thread.is_alive()


def test_a_lease_is_had_from_synchronous_code(null_portal: Portal) -> None:
    pool, lease = null_portal.call(null_portal.lease("null", SandboxLimits()))
    null_portal.call(lease.box.write_file("x", "1"))
    assert null_portal.call(lease.box.read_file("x")) == b"1"
    null_portal.call(give_back(pool, lease))


async def give_back(pool, lease) -> None:
    pool.release(lease)


def test_a_lease_outlives_the_loop_that_asked_for_it(null_portal: Portal) -> None:
    """Each step of an environment may run in a loop of its own."""
    _, lease = asyncio.run(null_portal.acall(null_portal.lease("null", SandboxLimits())))
    result = asyncio.run(null_portal.acall(lease.box.exec(["true"])))
    assert result.exit_code == 0


def test_equal_bounds_share_a_pool_and_others_do_not(null_portal: Portal) -> None:
    def lease(timeout_s: float):
        limits = SandboxLimits(timeout_s=timeout_s)
        return null_portal.call(null_portal.lease("null", limits))[0]

    assert lease(1.0) is lease(1.0)
    assert lease(1.0) is not lease(2.0)


def test_many_threads_lease_at_once(null_portal: Portal) -> None:
    boxes: list[Sandbox] = []

    def work() -> None:
        boxes.append(null_portal.call(null_portal.lease("null", SandboxLimits()))[1].box)

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(box) for box in boxes}) == 10


def test_closing_closes_every_box_and_refuses_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "null", "agentgym.sandbox.backends.null:NullSandbox")
    portal = Portal()
    _, lease = portal.call(portal.lease("null", SandboxLimits()))
    portal.close()
    portal.close()
    assert isinstance(lease.box, NullSandbox)
    assert lease.box.is_closed
    with pytest.raises(InfrastructureError, match="are closed"):
        portal.call(lease.box.ping())


@pytest.mark.parametrize("kind", ["null", "subprocess"])
def test_a_process_that_uses_the_portal_ends_by_itself(kind: str) -> None:
    """Its boxes are closed when Python takes no more work for threads."""
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import agentgym.sandbox as s\n"
        "s.BACKENDS['null'] = 'agentgym.sandbox.backends.null:NullSandbox'\n"
        "from agentgym.sandbox.shared_pools import portal\n"
        "from agentgym.sandbox.base import SandboxLimits\n"
        "p = portal()\n"
        f"p.call(p.lease({kind!r}, SandboxLimits()))\n"
        "print('done')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (ran.stdout, ran.stderr, ran.returncode) == (b"done\n", b"", 0)


# ----------------------------------------------------------------------------------- names


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(RegistryError, match=r"did you mean 'bubblewrap'"):
        registry.make_sandbox("bublewrap")


class Missing(NullSandbox):
    """A kind that is not installed."""

    async def start(self) -> None:
        raise SandboxUnavailableError("the program 'x' is not installed: apt-get install x")


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch):
    """Replace the kinds of sandboxes by name -> class."""

    def replace(**classes: type[Sandbox]) -> None:
        monkeypatch.setattr(registry, "BACKENDS", dict.fromkeys(classes, ""))
        monkeypatch.setattr(registry, "sandbox_class", lambda name: classes[name])

    return replace


async def test_best_available_takes_the_first_that_starts(kinds) -> None:
    kinds(first=Missing, second=NullSandbox)
    assert await registry.best_available() == "second"
    assert await registry.resolve("auto") == "second"
    assert await registry.resolve("first") == "first"


async def test_best_available_never_falls_back_to_one_that_does_not_isolate(kinds) -> None:
    class Open(NullSandbox):
        isolates = False

    kinds(first=Missing, open=Open)
    with pytest.raises(SandboxUnavailableError) as caught:
        await registry.best_available()
    text = str(caught.value)
    assert "first: the program 'x' is not installed: apt-get install x" in text
    assert "nothing was run" in text
    assert "ask for the sandbox 'subprocess' by name" in text


async def test_with_neither_bwrap_nor_an_engine_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    from agentgym.sandbox.backends import bubblewrap, docker

    monkeypatch.setattr(bubblewrap.shutil, "which", lambda *args, **kwargs: None)
    monkeypatch.setattr(docker, "default_engine", lambda: None)
    with pytest.raises(SandboxUnavailableError) as caught:
        await registry.best_available()
    for package in ("bubblewrap", "docker.io", "podman"):
        assert f"apt-get install {package}" in str(caught.value)
