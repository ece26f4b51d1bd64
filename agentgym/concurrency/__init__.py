"""Threads for blocking and async code, and limits on how much runs at once."""
