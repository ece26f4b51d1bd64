"""Grading of mathematical answers."""
