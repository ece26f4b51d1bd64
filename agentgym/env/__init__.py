"""The environment contract, tool environments, the registry, suites and decontamination."""
