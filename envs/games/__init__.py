"""Three small games with a known optimum: oracles for tests and benchmarks."""
