"""Math with tools: arithmetic, reasoning puzzles, word problems from files, and their grading."""
