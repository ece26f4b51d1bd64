"""What can be had without trying: for each data set of reasoning-gym, and for rows with answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

LEAST = 0.02
"""Declared where less was measured."""
UNDECLARED = 0.2
"""Above this an environment says why."""
_Z = 1.96

# Mean library score over 24 tasks of the better of: a constant answer (the two most frequent of 48
# other tasks, "0", "yes", "nan" and "inf"), and each the answer of another task. Rounded up;
# others have less.
NULL_SCORES: dict[str, float] = {
    "acre": 0.42,
    "aiw": 0.3,
    "arc_agi": 0.05,
    "basic_arithmetic": 0.05,
    "binary_alternation": 0.13,
    "caesar_cipher": 0.05,
    "calendar_arithmetic": 0.13,
    "chain_sum": 0.05,
    "circuit_logic": 0.55,
    "coin_flip": 0.92,
    "color_cube_rotation": 0.06,
    "count_bits": 0.21,
    "countdown": 0.05,
    "course_schedule": 0.67,
    "family_relationships": 0.21,
    "figlet_font": 0.06,
    "fraction_simplification": 0.05,
    "game_of_life": 0.96,
    "game_of_life_halting": 1.0,
    "gcd": 0.38,
    "graph_color": 0.18,
    "gsm_symbolic": 0.06,
    "isomorphic_strings": 0.5,
    "jugs": 0.06,
    "largest_island": 0.3,
    "letter_counting": 0.59,
    "mahjong_puzzle": 0.59,
    "manipulate_matrix": 0.09,
    "maze": 0.59,
    "mini_sudoku": 0.26,
    "modulo_grid": 0.05,
    "n_queens": 0.13,
    "number_sequence": 0.21,
    "palindrome_generation": 0.05,
    "polynomial_equations": 0.33,
    "power_function": 0.06,
    "products": 0.09,
    "propositional_logic": 0.89,
    "puzzle24": 1.0,
    "ransom_note": 0.67,
    "rearc": 0.05,
    "rectangle_count": 0.46,
    "rotten_oranges": 0.3,
    "self_reference": 0.3,
    "sentence_reordering": 0.1,
    "shortest_path": 0.25,
    "sokoban": 0.09,
    "spell_backward": 0.07,
    "sudoku": 0.13,
    "syllogism": 0.71,
    "time_intervals": 0.45,
    "tower_of_hanoi": 0.05,
    "tsumego": 0.09,
    "zebra_puzzles": 0.34,
}


def null_score_of_answers(answers: Sequence[str]) -> float:
    """Return an upper bound of what the most frequent of these answers scores on rows like these.

    Few rows make a wide bound (Wilson's, 95 %), which is kept below what needs a reason unless the
    answer itself is that frequent.
    """
    count = len(answers)
    share = Counter(answers).most_common(1)[0][1] / count
    spread = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    upper = (share + _Z**2 / (2 * count) + spread) / (1 + _Z**2 / count)
    return max(LEAST, share, min(upper, UNDECLARED))
