"""Tasks of the reasoning_gym package."""
