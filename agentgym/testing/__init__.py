"""Fakes for tests: a vLLM server, a scripted policy, a toy tokenizer."""
