"""The command line. `agentgym.cli.main:main` is its entry point."""
