"""`games/gridworld-v0`: walk to the goal in a grid of walls and holes, within a budget of moves.

In order: the grid and its exact solver, the generator of tasks, the environment. Each task has a
path with at least one turn, so that no single repeated move solves it.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym import seeding
from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.envs.games.splits import is_held_out
from agentgym.envs.splits import check_int, check_levels, check_request
from agentgym.errors import EnvError
from agentgym.records import ErrorKind, Task
from agentgym.records.limits import Limits

ENV_ID = "games/gridworld-v0"
SIDES = {1: 4, 2: 5, 3: 6, 4: 8, 5: 10}
"""Level -> cells a side."""
LEVELS = tuple(SIDES)
SLACK = 2
"""Moves beyond the shortest path. A detour takes two, so one mistake is forgiven."""
MOST_SLACK = 10
"""Five mistakes. With more, random moves solve a tenth of the easiest maps and more."""
MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_WALL: str = "#"
_HOLE: str = "O"
_FLOOR: str = "."
_GOAL: str = "G"
_AGENT: str = "A"
_WALL_SHARE, _HOLE_SHARE = 0.12, 0.16
_LONGEST = 60
"""Bound of a path, and with the slack of an episode: above any shortest path of 10 x 10 cells."""
_RANDOM_SCORE, _RANDOM_SCORE_A_MOVE = 0.03, 0.008
"""What random moves score at the usual slack, and with each move more. On 3,000 maps of the easiest
level they scored 0.019 at slack 2, 0.053 at 6 and 0.083 at 10."""

Cell = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Cells with a start and a goal.

    Example:
        Grid(rows=("A.O", "#.G"), start=(0, 0), goal=(1, 2)); shortest path right, down, right
    """

    rows: tuple[str, ...]
    """One string a row, with the agent at the start."""
    start: Cell
    """Row and column, from 0."""
    goal: Cell
    """Row and column, from 0."""

    @classmethod
    def parse(cls, rows: Sequence[str]) -> Grid:
        """Return the grid that the rows draw.

        Raises:
            EnvError: If there is not exactly one agent and one goal.
        """
        cells = [(r, c) for r, row in enumerate(rows) for c in range(len(row))]
        starts = [cell for cell in cells if rows[cell[0]][cell[1]] == _AGENT]
        goals = [cell for cell in cells if rows[cell[0]][cell[1]] == _GOAL]
        if len(starts) != 1 or len(goals) != 1:
            raise EnvError(f"a grid needs one {_AGENT!r} and one {_GOAL!r} (got {tuple(rows)!r})")
        return cls(rows=tuple(rows), start=starts[0], goal=goals[0])

    def is_open(self, cell: Cell) -> bool:
        """Return whether a cell is inside and no wall."""
        row, column = cell
        inside = 0 <= row < len(self.rows) and 0 <= column < len(self.rows[0])
        return inside and self.rows[row][column] != _WALL

    def is_hole(self, cell: Cell) -> bool:
        """Return whether a cell is a hole."""
        return self.rows[cell[0]][cell[1]] == _HOLE

    def draw(self, agent: Cell) -> str:
        """Return the map with the agent at a cell."""
        rows = [list(row.replace(_AGENT, _FLOOR)) for row in self.rows]
        rows[agent[0]][agent[1]] = _AGENT
        return "\n".join("".join(row) for row in rows)


def neighbour(cell: Cell, move: str) -> Cell:
    """Return the cell next to `cell` in the direction of `move`."""
    step = MOVES[move]
    return cell[0] + step[0], cell[1] + step[1]


def distances(grid: Grid) -> dict[Cell, int]:
    """Return the fewest moves to the goal from each cell that can reach it without a hole."""
    found = {grid.goal: 0}
    queue = deque([grid.goal])
    while queue:
        cell = queue.popleft()
        for move in MOVES:
            other = neighbour(cell, move)
            if other not in found and grid.is_open(other) and not grid.is_hole(other):
                found[other] = found[cell] + 1
                queue.append(other)
    return found


def generate_task(index: int, *, split: str = "train", levels: Sequence[int] = LEVELS) -> Task:
    """Return task number `index` of a split; levels take turns.

    Raises:
        EnvError: If the split, a level or the index is not one.
    """
    levels = check_levels(levels, LEVELS)
    check_request(index, split)
    level, number = levels[index % len(levels)], index // len(levels)
    rng = seeding.rng("gridworld", level, split, number)
    while True:
        rows = _draw_rows(rng, SIDES[level])
        if is_held_out("gridworld", *rows) == (split == "held_out") and _is_fair(rows):
            break
    return Task(
        id=f"gridworld-{level}-{split}-{number:06d}",
        env_id=ENV_ID,
        prompt="\n".join(rows),
        payload={"rows": list(rows)},
        difficulty=float(level),
        tags=(f"level-{level}",),
        split=split,
    )


def _draw_rows(rng: random.Random, side: int) -> tuple[str, ...]:
    weights = (_WALL_SHARE, _HOLE_SHARE, 1 - _WALL_SHARE - _HOLE_SHARE)
    cells = rng.choices((_WALL, _HOLE, _FLOOR), weights, k=side * side)
    start, goal = rng.sample(range(side * side), 2)
    cells[start], cells[goal] = _AGENT, _GOAL
    return tuple("".join(cells[r * side : (r + 1) * side]) for r in range(side))


def _is_fair(rows: tuple[str, ...]) -> bool:
    """Whether the goal can be reached, far enough away and not in a straight line."""
    grid = Grid.parse(rows)
    length = distances(grid).get(grid.start)
    has_turn = grid.start[0] != grid.goal[0] and grid.start[1] != grid.goal[1]
    return length is not None and has_turn and len(rows) <= length <= _LONGEST


class GridworldEnv(TextEnv):
    """Walk from A to G. A wall stops a move, a hole ends the episode; every action costs a move.

    Args:
        levels: Levels to draw tasks from.
        slack: Moves beyond the shortest path, 0 to 10.

    Raises:
        EnvError: If a level is unknown, or the slack not an integer in that range.
    """

    system_prompt = (
        "You are A on a map. Reach G. # is a wall, O is a hole that ends the game, . is floor. "
        "Each reply is one word: up, down, left or right."
    )
    limits = Limits(max_turns=_LONGEST + SLACK)
    null_score = _RANDOM_SCORE

    def __init__(
        self,
        *,
        levels: Sequence[int] = LEVELS,
        slack: int = SLACK,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        self._levels = check_levels(levels, LEVELS)
        self._slack = check_int("slack", slack, low=0, high=MOST_SLACK)
        self.limits = Limits(max_turns=_LONGEST + self._slack)
        more = max(self._slack - SLACK, 0)
        self.null_score = round(_RANDOM_SCORE + _RANDOM_SCORE_A_MOVE * more, 3)

    def sample_task(self, rng: random.Random) -> Task:
        """Return a training task drawn with `rng`."""
        return generate_task(rng.randrange(2**31), levels=self._levels)

    def start(self, task: Task, rng: random.Random) -> str:
        """Show the map."""
        self._grid = Grid.parse([str(row) for row in _rows(task)])
        self._distances = distances(self._grid)
        self._cell = self._grid.start
        self._left = self._distances[self._cell] + self._slack
        return self._picture()

    def respond(self, action: Action) -> Reply:
        """Make one move."""
        self._left -= 1
        words = re.findall(r"[a-z]+", (action.answer or "").lower())
        moves = [word for word in words if word in MOVES]
        if len(moves) != 1:
            return self._next("Write one of: up, down, left, right.", ErrorKind.FORMAT)
        target = neighbour(self._cell, moves[0])
        if not self._grid.is_open(target):
            return self._next("A wall is in the way.")
        self._cell = target
        if target == self._grid.goal:
            return self.finish("You reached the goal.", outcome=1.0)
        if self._grid.is_hole(target):
            return self.finish("You fell into a hole.", outcome=0.0)
        return self._next("")

    def expert(self) -> str:
        """Return the first move of a shortest path."""
        steps = ((self._distances.get(neighbour(self._cell, move)), move) for move in MOVES)
        reachable = [(distance, move) for distance, move in steps if distance is not None]
        # Equal distances: the order of MOVES decides, so that the expert is deterministic.
        return min(reachable, key=lambda pair: (pair[0], list(MOVES).index(pair[1])))[1]

    def guess(self, rng: random.Random) -> str:
        """Return a random move."""
        return rng.choice(list(MOVES))

    def _next(self, text: str, error_kind: ErrorKind | None = None) -> Reply:
        if self._left <= 0:
            return Reply(
                observation=f"{text} No move left.".strip(), outcome=0.0, error_kind=error_kind
            )
        picture = self._picture()
        return Reply(observation=f"{text}\n{picture}" if text else picture, error_kind=error_kind)

    def _picture(self) -> str:
        return f"{self._grid.draw(self._cell)}\n{self._left} moves left."


def _rows(task: Task) -> Sequence[object]:
    rows = task.payload.get("rows")
    if not isinstance(rows, list | tuple):
        raise EnvError(f"a task of {ENV_ID} needs the list 'rows' in its payload (got {rows!r})")
    return rows
