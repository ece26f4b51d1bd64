"""Documents, indices and retrievers."""
