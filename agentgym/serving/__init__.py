"""vLLM servers on this machine: how one is started, and who looks after several."""
