"""Sandboxes, where programs that an agent wrote are run: name -> `module:Class`, best first."""

if __name__ != "agentgym.sandbox":
    raise ImportError("import agentgym.sandbox, not sandbox: else each class exists twice")

BACKENDS: dict[str, str] = {
    "bubblewrap": "agentgym.sandbox.backends.bubblewrap:BubblewrapSandbox",
    "docker": "agentgym.sandbox.backends.docker:DockerSandbox",
    "subprocess": "agentgym.sandbox.backends.subprocess:SubprocessSandbox",
}
