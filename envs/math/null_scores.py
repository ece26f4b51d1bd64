"""What can be had without trying, for each data set of reasoning-gym."""

NULL_SCORES: dict[str, float] = {}
