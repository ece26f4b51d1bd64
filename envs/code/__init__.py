"""Code: write a function, mend one, use a shell. What agents write runs in `agentgym.sandbox`."""
