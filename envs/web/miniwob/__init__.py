"""MiniWoB++ pages as an environment."""
