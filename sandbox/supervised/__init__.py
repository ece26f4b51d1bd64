"""Sandboxes that run programs through the supervisor inside them."""
