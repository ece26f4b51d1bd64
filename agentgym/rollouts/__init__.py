"""Playing episodes: engine, one episode, groups, scoring, and training samples."""
