"""vLLM's `serve` command as a module, which has options that its server module has not.

`python -m vllm_serve --model DIR --api-server-count 4 …`
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

if __name__ == "__main__":
    command: Any = importlib.import_module("vllm.entrypoints.cli.main")
    model = sys.argv.index("--model")
    folder = sys.argv[model + 1]
    sys.argv[1:] = ["serve", folder, *sys.argv[1:model], *sys.argv[model + 2 :]]
    command.main()
