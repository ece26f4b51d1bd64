"""Task suites: rows or generators by name, with train and held-out splits."""

if __name__ != "agentgym.tasks":
    raise ImportError("import agentgym.tasks, not tasks: else each class exists twice")
