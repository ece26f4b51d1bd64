"""`python -m agentgym`: the command, for launchers such as torchrun that start modules."""

from __future__ import annotations

import sys

from agentgym.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
