"""Environments of other packages behind the contract of ours."""
