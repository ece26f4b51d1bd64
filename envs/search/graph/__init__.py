"""Questions over a generated knowledge graph."""
