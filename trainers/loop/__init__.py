"""The training loop and the steps that it calls."""
