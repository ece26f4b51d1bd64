"""Evaluation: `statistics` (intervals, pass@k), `result`, `summary`, `evaluator`, `comparison`."""

from __future__ import annotations

from agentgym.evaluation.comparison import Difference, combine, compare
from agentgym.evaluation.evaluator import choose_tasks, evaluate_policy, evaluation_sources
from agentgym.evaluation.result import Attempt, Breakdown, EvaluationResult
from agentgym.evaluation.signals import length_warning
from agentgym.evaluation.statistics import Interval, mean_interval, paired_difference, pass_at_k

__all__ = [
    "Attempt",
    "Breakdown",
    "Difference",
    "EvaluationResult",
    "Interval",
    "choose_tasks",
    "combine",
    "compare",
    "evaluate_policy",
    "evaluation_sources",
    "length_warning",
    "mean_interval",
    "paired_difference",
    "pass_at_k",
]
