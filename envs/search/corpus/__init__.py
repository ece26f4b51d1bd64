"""Question answering over a corpus of documents."""
