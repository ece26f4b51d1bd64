"""Boxes in containers of a Docker-compatible engine: Docker's own, or Podman through its socket.

One container a box, started ahead; its first program is the supervisor, so that a program costs no
`docker exec`. The container removes itself when the supervisor ends, which it does when the host's
connection ends: a crashed host leaves nothing, and what an engine's own crash leaves has a label.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from agentgym.errors import InfrastructureError
from agentgym.sandbox.base import SandboxLimits, SandboxUnavailableError
from agentgym.sandbox.host import cgroups, seccomp, threads
from agentgym.sandbox.host.process_tags import owned_name
from agentgym.sandbox.supervised.bootstrap import supervisor_argv
from agentgym.sandbox.supervised.sandbox import SupervisedSandbox
from agentgym.sandbox.supervised.transport import BoxLostError, Channel

T = TypeVar("T")
IMAGE = "localhost/agentgym/python-box:1"
"""Built from `sandbox/images/python/Dockerfile`."""
LABEL = "agentgym.sandbox"
"""Label of every container; its value names the process that made it."""
INSIDE_UID = 65534
ENGINE_TIMEOUT_S = 60
"""For one request to the engine; programs are not waited for through requests."""
ULIMITS = {"nofile": 1024, "nproc": 4096}
"""Engines default to numbers that an engine without CAP_SYS_RESOURCE cannot set. The second counts
the processes of all boxes together, which share a user id; each box has its own bound besides."""
REMOVE_WAIT_S = 15.0
STDOUT, STDERR = 1, 2
MAX_DIAGNOSIS = 4096
_threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="agentgym-docker")


class DockerSandbox(SupervisedSandbox):
    """A box in a container, without network."""

    name: ClassVar[str] = "docker"

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        image: str = IMAGE,
        engine: str | None = None,
    ) -> None:
        """Choose image and engine.

        Args:
            limits: Bounds of the box.
            image: Image with `python3` of at least 3.8, ctypes included, and `sh`.
            engine: Address such as `unix:///run/podman/podman.sock`; by default that of
                `DOCKER_HOST`, else the first of the usual sockets that is there.
        """
        super().__init__(limits)
        self._image = image
        self._engine = engine

    async def _launch(self) -> Channel:
        client = await in_thread(connect, self._engine)
        container, profile = None, None
        try:
            profile = await in_thread(_seccomp_profile, client)
            container = await in_thread(self._create, client, profile)
            stream = await in_thread(_attach, client, container)
            channel = _ContainerChannel(client, container, stream)
            await channel.open()
            await in_thread(container.start)
        except BaseException as error:
            await asyncio.shield(in_thread(_discard, client, container))
            raise _explained(error, self._image) from error
        finally:
            if profile is not None and profile.startswith("/"):
                os.unlink(profile)
        return channel

    def _create(self, client: Any, profile: str) -> Any:
        limits = self.limits
        disk = f"size={limits.disk_bytes},mode=1777,exec"
        scratch = f"size={limits.disk_bytes // 4},mode=1777,exec"
        memory = cgroups.memory_bound(limits)
        from docker.types import LogConfig, Ulimit

        return client.containers.create(
            self._image,
            supervisor_argv("python3"),
            entrypoint=[],
            detach=True,
            stdin_open=True,
            auto_remove=True,
            labels={LABEL: owned_name("")},
            user=f"{INSIDE_UID}:{INSIDE_UID}",
            working_dir="/",
            network_mode="none",
            hostname="box",
            mem_limit=memory,
            memswap_limit=memory,
            pids_limit=limits.max_processes + cgroups.SPARE_PROCESSES,
            nano_cpus=int(limits.cpu_cores * 1e9),
            cap_drop=["ALL"],
            security_opt=["no-new-privileges", f"seccomp={profile}"],
            read_only=True,
            # Podman would add a writable /var/tmp without bound.
            tmpfs={self.work_dir: disk, "/tmp": scratch, "/var/tmp": "ro,size=4k"},
            shm_size=limits.disk_bytes // 4,
            ulimits=[Ulimit(name=name, soft=n, hard=n) for name, n in ULIMITS.items()],
            # The supervisor's frames are no log: a driver would write every byte to the disk.
            log_config=LogConfig(type="none"),
        )


class _ContainerChannel:
    """A supervisor behind the engine's attach stream, which interleaves both outputs."""

    def __init__(self, client: Any, container: Any, stream: socket.socket) -> None:
        self._client = client
        self._container = container
        self._stream = stream
        self._pending = bytearray()
        self._errors = bytearray()

    async def open(self) -> None:
        """Hand the connection to the event loop."""
        self._stream.setblocking(False)
        self._reader, self._writer = await asyncio.open_connection(sock=self._stream)

    async def send(self, data: bytes) -> None:
        """Write all bytes."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            raise BoxLostError("the container is gone") from error

    async def receive(self, count: int) -> bytes:
        """Return exactly `count` bytes of the supervisor's standard output."""
        try:
            while len(self._pending) < count:
                # Eight bytes: which stream, three of nothing, the length.
                header = await self._reader.readexactly(8)
                chunk = await self._reader.readexactly(int.from_bytes(header[4:], "big"))
                if header[0] == STDOUT:
                    self._pending += chunk
                elif header[0] == STDERR and len(self._errors) < MAX_DIAGNOSIS:
                    self._errors += chunk
        except (asyncio.IncompleteReadError, OSError) as error:
            raise BoxLostError("the container has ended") from error
        data = bytes(self._pending[:count])
        del self._pending[:count]
        return data

    async def kill(self) -> None:
        """Remove the container and wait until the engine has forgotten it."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        await in_thread(_discard, self._client, self._container)

    def diagnosis(self) -> str:
        """Return what was written to standard error."""
        return self._errors.decode("utf-8", "replace").strip()


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Return what a blocking call of the engine's client returns."""
    return await threads.in_thread(function, *arguments, executor=_threads)


_NO_PACKAGE = "containers need the package 'docker': pip install 'agentgym-rl-kit[docker]'"
_NO_ENGINE = (
    "no container engine is running: apt-get install docker.io (then start `dockerd`), "
    "or apt-get install podman (then start `podman system service`); set DOCKER_HOST if "
    "its socket is in an unusual place"
)


def connect(engine: str | None = None) -> Any:
    """Return a client of the engine.

    Raises:
        SandboxUnavailableError: If the package is missing or no engine answers.
    """
    address = engine or default_engine()
    try:
        import docker
        from docker.errors import DockerException
    except ImportError as error:
        absent = [_NO_PACKAGE] if address is not None else [_NO_PACKAGE, _NO_ENGINE]
        raise SandboxUnavailableError("; ".join(absent)) from error
    if address is None:
        raise SandboxUnavailableError(_NO_ENGINE)
    try:
        client = docker.DockerClient(base_url=address, timeout=ENGINE_TIMEOUT_S)
        client.ping()
    except (DockerException, OSError) as error:
        raise SandboxUnavailableError(f"the engine at {address} does not answer: {error}") from None
    return client


def default_engine() -> str | None:
    """Return the address of the engine that users mean: `DOCKER_HOST`, else a usual socket."""
    if os.environ.get("DOCKER_HOST"):
        return os.environ["DOCKER_HOST"]
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    for path in ("/var/run/docker.sock", f"{runtime}/docker.sock", "/run/podman/podman.sock",
                 f"{runtime}/podman/podman.sock"):  # fmt: skip
        if Path(path).is_socket():
            return f"unix://{path}"
    return None


def image_command() -> str:
    """Return the command that builds the image of the boxes."""
    folder = Path(__file__).resolve().parents[1] / "images" / "python"
    return f"docker build -t {IMAGE} {folder}"


def is_podman(client: Any) -> bool:
    """Return whether the engine is Podman."""
    components = client.version().get("Components") or []
    return any("podman" in str(part.get("Name", "")).lower() for part in components)


def _seccomp_profile(client: Any) -> str:
    """Return the filter as the engine takes it: as JSON, or as the path of a file (Podman)."""
    if not is_podman(client):
        return seccomp.docker_profile()
    with tempfile.NamedTemporaryFile(
        "w", prefix="agentgym-seccomp-", suffix=".json", delete=False
    ) as file:
        file.write(seccomp.docker_profile())
    return file.name


def _attach(client: Any, container: Any) -> socket.socket:
    """Return the connection to a container that is not started yet.

    Nothing has been written at this moment, so the client library cannot have read too far.
    """
    flags = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    stream = client.api.attach_socket(container.id, params=flags)
    raw = getattr(stream, "_sock", stream)
    if not isinstance(raw, socket.socket):
        raise InfrastructureError("engines over TLS or ssh are not supported; use a local socket")
    copy = socket.socket(fileno=os.dup(raw.fileno()))
    response = getattr(stream, "_response", None)
    if response is not None:
        response.close()
    stream.close()
    return copy


def _discard(client: Any, container: Any) -> None:
    """Remove a container, if there is one, and close the client."""
    from docker.errors import DockerException

    try:
        if container is not None:
            remove_container(client, container.id)
    except (DockerException, OSError) as error:
        raise InfrastructureError(f"a container could not be removed: {error}") from error
    finally:
        client.close()


def remove_container(client: Any, container_id: str) -> None:
    """Kill and remove a container, and return when it is gone."""
    from docker.errors import APIError, NotFound

    deadline = time.monotonic() + REMOVE_WAIT_S
    while True:
        try:
            client.api.remove_container(container_id, force=True, v=True)
        except NotFound:
            return
        except APIError:
            # It is being removed already, by itself or by an earlier try.
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _explained(error: BaseException, image: str) -> BaseException:
    """Return the error to raise instead of one of the engine's client."""
    try:
        from docker.errors import DockerException, ImageNotFound
    except ImportError:
        return error
    if isinstance(error, ImageNotFound):
        return SandboxUnavailableError(f"the engine has no image {image!r}: {image_command()}")
    if isinstance(error, DockerException | OSError):
        return InfrastructureError(f"the engine did not start a container: {error}")
    return error
