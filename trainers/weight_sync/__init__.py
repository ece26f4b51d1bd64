"""Policies that follow the learner: transports of weights and their verification."""
