"""Scripted solutions of MiniWoB's pages: from the words of the task and the page to one action."""

from agentgym.envs.web.miniwob.solutions.base import Solution, solution_of

__all__ = ["Solution", "solution_of"]
