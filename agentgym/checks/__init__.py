"""Checks shipped with the package: each proves that an implementation keeps its contract."""
