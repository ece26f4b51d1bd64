"""The generator of file-system tasks: a folder as it is, an order, and the folder as it should be.

| level | what is asked | such as |
|---|---|---|
| 1 | one change of one file | rename a.txt to b.txt |
| 2 | one change of many files | delete every file that ends in .tmp |
| 3 | something read from files | write the number of lines of a.txt to count.txt |

What is asked decides whether a task is held out: the same order in another folder has the same
solution.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentgym import seeding
from agentgym.envs import splits
from agentgym.records import Task

ENV_ID = "code/shell-v0"
SPLITS = splits.SPLITS
LEVELS = (1, 2, 3)
HELD_OUT_SHARE = 8

_STEMS = (
    "alpha", "bread", "cedar", "delta", "ember", "fable", "grain", "hazel", "inlet", "jetty",
    "kayak", "lemon", "maple", "north", "olive", "pearl", "quill", "river", "stone", "tulip",
)  # fmt: skip
_WORDS = (
    "red", "blue", "green", "oak", "fir", "wind", "rain", "salt", "iron", "gold", "moss", "clay",
)  # fmt: skip
_ENDINGS = ("txt", "log", "csv", "tmp")

Files = dict[str, str]


@dataclass(frozen=True, slots=True)
class _Order:
    """What is asked, what it leads to, and a command that does it."""

    words: str
    wanted: Files
    command: str


def generate_task(index: int, *, split: str = "train", levels: Sequence[int] = LEVELS) -> Task:
    """Return task number `index` of a split; the levels take turns.

    Args:
        index: Position from 0, without an upper bound.
        split: `train` or `held_out`.
        levels: Levels to draw from.

    Raises:
        EnvError: If the split, a level or the index is not one.
    """
    levels = check_levels(levels)
    splits.check_request(index, split)
    level, number = levels[index % len(levels)], index // len(levels)
    rng = seeding.rng("code/shell", level, split, number)
    while True:
        files = _folder(rng)
        order = rng.choice(_ORDERS[level])(rng, dict(files))
        is_held_out = seeding.derive("held out", order.words) % HELD_OUT_SHARE == 0
        if order.wanted != files and is_held_out == (split == "held_out"):
            break
    return Task(
        id=f"shell-{level}-{split}-{number:06d}",
        env_id=ENV_ID,
        prompt=f"In the current folder: {order.words}.",
        answers=(order.command,),
        payload={"files": dict(files), "wanted": dict(order.wanted), "level": level},
        difficulty=float(level),
        tags=(f"level-{level}",),
        split=split,
    )


def draw_task(rng: random.Random, *, levels: Sequence[int] = LEVELS) -> Task:
    """Return a training task drawn with `rng`."""
    return generate_task(rng.randrange(2**31), levels=levels)


def check_levels(levels: Sequence[int]) -> tuple[int, ...]:
    """Return the levels in order.

    Raises:
        EnvError: If there is none, or one is unknown.
    """
    return splits.check_levels(levels, LEVELS)


def _folder(rng: random.Random) -> Files:
    """Return some files, at least two of one ending."""
    stems = rng.sample(_STEMS, rng.randrange(4, 7))
    endings = [rng.choice(_ENDINGS) for _ in stems]
    endings[1] = endings[0]
    return {f"{stem}.{end}": _lines(rng) for stem, end in zip(stems, endings, strict=True)}


def _lines(rng: random.Random) -> str:
    rows = [f"{rng.choice(_WORDS)} {rng.randrange(100)}" for _ in range(rng.randrange(2, 7))]
    return "\n".join(rows) + "\n"


def _pick(rng: random.Random, files: Files) -> str:
    return rng.choice(sorted(files))


def _new_name(rng: random.Random, files: Files, ending: str) -> str:
    taken = {name.partition(".")[0] for name in files}
    return f"{rng.choice([stem for stem in _STEMS if stem not in taken])}.{ending}"


def _ending(rng: random.Random, files: Files) -> tuple[str, list[str]]:
    ending = rng.choice(sorted({name.partition(".")[2] for name in files}))
    return ending, sorted(name for name in files if name.endswith(f".{ending}"))


def _write(rng: random.Random, files: Files) -> _Order:
    name, word = _new_name(rng, files, "txt"), rng.choice(_WORDS)
    words = f"make the file {name} with one line, {word}"
    return _Order(words, {**files, name: f"{word}\n"}, f"echo {word} > {name}")


def _delete(rng: random.Random, files: Files) -> _Order:
    name = _pick(rng, files)
    wanted = {key: text for key, text in files.items() if key != name}
    return _Order(f"delete the file {name}", wanted, f"rm {name}")


def _rename(rng: random.Random, files: Files) -> _Order:
    old = _pick(rng, files)
    new = _new_name(rng, files, old.partition(".")[2])
    wanted = {(new if key == old else key): text for key, text in files.items()}
    return _Order(f"rename {old} to {new}", wanted, f"mv {old} {new}")


def _copy(rng: random.Random, files: Files) -> _Order:
    old = _pick(rng, files)
    new = _new_name(rng, files, old.partition(".")[2])
    return _Order(f"copy {old} to {new}", {**files, new: files[old]}, f"cp {old} {new}")


def _append(rng: random.Random, files: Files) -> _Order:
    name, word = _pick(rng, files), rng.choice(_WORDS)
    words = f"add the line {word} to the end of {name}"
    return _Order(words, {**files, name: f"{files[name]}{word}\n"}, f"echo {word} >> {name}")


def _delete_all(rng: random.Random, files: Files) -> _Order:
    ending, names = _ending(rng, files)
    wanted = {key: text for key, text in files.items() if key not in names}
    return _Order(f"delete every file that ends in .{ending}", wanted, f"rm *.{ending}")


def _move_all(rng: random.Random, files: Files) -> _Order:
    ending, names = _ending(rng, files)
    folder = _new_name(rng, files, "").rstrip(".")
    wanted = {(f"{folder}/{key}" if key in names else key): text for key, text in files.items()}
    words = f"move every file that ends in .{ending} into a new folder {folder}"
    return _Order(words, wanted, f"mkdir {folder}; mv *.{ending} {folder}")


def _join(rng: random.Random, files: Files) -> _Order:
    ending, names = _ending(rng, files)
    new = _new_name(rng, files, "all")
    words = f"join the files that end in .{ending}, in order of their names, into {new}"
    wanted = {**files, new: "".join(files[name] for name in names)}
    return _Order(words, wanted, f"cat *.{ending} > {new}")


def _count_lines(rng: random.Random, files: Files) -> _Order:
    name, new = _pick(rng, files), _new_name(rng, files, "txt")
    words = f"write the number of lines of {name}, alone, to {new}"
    count = files[name].count("\n")
    return _Order(words, {**files, new: f"{count}\n"}, f"wc -l < {name} > {new}")


def _sort(rng: random.Random, files: Files) -> _Order:
    name, new = _pick(rng, files), _new_name(rng, files, "txt")
    rows = sorted(files[name].splitlines(keepends=True))
    words = f"write the lines of {name} in byte order to {new}"
    return _Order(words, {**files, new: "".join(rows)}, f"LC_ALL=C sort {name} > {new}")


def _keep_lines(rng: random.Random, files: Files) -> _Order:
    name, new = _pick(rng, files), _new_name(rng, files, "txt")
    word = files[name].split()[0]
    rows = [row for row in files[name].splitlines(keepends=True) if row.startswith(f"{word} ")]
    words = f"write the lines of {name} whose first word is {word} to {new}"
    return _Order(words, {**files, new: "".join(rows)}, f"grep '^{word} ' {name} > {new}")


def _last_line(rng: random.Random, files: Files) -> _Order:
    name, new = _pick(rng, files), _new_name(rng, files, "txt")
    words = f"write the last line of {name} to {new}"
    row = files[name].splitlines(keepends=True)[-1]
    return _Order(words, {**files, new: row}, f"tail -n 1 {name} > {new}")


_ORDERS: Mapping[int, Sequence[Callable[[random.Random, Files], _Order]]] = {
    1: (_write, _delete, _rename, _copy, _append),
    2: (_delete_all, _move_all, _join),
    3: (_count_lines, _sort, _keep_lines, _last_line),
}
