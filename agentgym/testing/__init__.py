"""Fakes for tests: a vLLM server and a toy tokenizer."""
