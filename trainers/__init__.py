"""The trainer: torch starts here. Records come in, tensors and updates go out.

This file holds the guard only; import from the modules (`agentgym.trainers.batch`, …).
"""

if __name__ != "agentgym.trainers":
    raise ImportError("import agentgym.trainers, not trainers: the bare name gives a second copy")
