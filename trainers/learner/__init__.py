"""The learner: forward passes, optimiser, ranks, checkpoints, supervised warm start."""
