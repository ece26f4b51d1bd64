"""Browser processes, contexts, pages and what an agent sees of them."""
