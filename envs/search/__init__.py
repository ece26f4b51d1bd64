"""Search QA: questions whose answers lie in a corpus, reached with the tools search and open."""
