"""Presets, advantages of a batch, and the loss of a micro-batch."""
