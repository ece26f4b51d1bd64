"""The task stream, the buffer of episodes, and their staleness."""
