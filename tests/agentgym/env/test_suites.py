"""Suites: splits, draws, rows with their source, environments as suites, leaks."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agentgym.env import registry, suites
from agentgym.env.contract import Reply, TextEnv
from agentgym.env.registry import register_env
from agentgym.env.suite import GeneratedSplit, Suite
from agentgym.env.suites import LeakError, check_leaks, load_suite, read_rows
from agentgym.env.task_files import Origin
from agentgym.errors import ConfigError, TaskError
from agentgym.records import Task

ENV = "test/sum-v0"


def task(number: int, *, prompt: str | None = None, split: str = "train") -> Task:
    return Task(
        id=f"t{number}",
        env_id=ENV,
        env_kwargs={"b": number},
        prompt=prompt if prompt is not None else f"{number}+1",
        answers=(str(number + 1),),
        split=split,
    )


SUITE = Suite(
    name="test/sum",
    env_id=ENV,
    env_kwargs={"a": 1, "b": 2},
    splits={
        "train": GeneratedSplit(generate=task),
        "held_out": GeneratedSplit(generate=lambda n: task(n + 1000), size=6),
        "rows": tuple(task(n) for n in range(4)),
    },
)


def test_tasks_carry_suite_split_and_arguments() -> None:
    first = SUITE.tasks("rows", limit=1)[0]
    assert (first.suite, first.split) == ("test/sum", "rows")
    assert first.env_kwargs == {"a": 1, "b": 0}  # the task's own argument is stronger


def test_tasks_without_seed_are_the_first_ones() -> None:
    assert [t.id for t in SUITE.tasks("rows")] == ["t0", "t1", "t2", "t3"]
    assert [t.id for t in SUITE.tasks("held_out", limit=2)] == ["t1000", "t1001"]
    assert [t.id for t in SUITE.tasks("rows", limit=9)] == ["t0", "t1", "t2", "t3"]


def test_tasks_with_seed_are_drawn_once_each_and_the_same_again() -> None:
    drawn = [t.id for t in SUITE.tasks("held_out", limit=4, seed=7)]
    assert drawn == [t.id for t in SUITE.tasks("held_out", limit=4, seed=7)]
    assert len(set(drawn)) == 4
    assert drawn != [t.id for t in SUITE.tasks("held_out", limit=4, seed=8)]
    assert len(SUITE.tasks("train", limit=5, seed=7)) == 5


def test_sample_depends_on_the_generator_alone() -> None:
    one = [SUITE.sample("held_out", random.Random(3)).id for _ in range(2)]
    assert one[0] == one[1]
    rng = random.Random(3)
    assert {SUITE.sample("held_out", rng).id for _ in range(60)} == {
        f"t{n}" for n in range(1000, 1006)
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SUITE.tasks("train"), "has no end.*'limit'"),
        (lambda: SUITE.tasks("rows", limit=0), r"'limit' must be >= 1.*got 0"),
        (lambda: Suite(name="a/b", env_id=ENV, splits={"empty": ()}), "a/b/empty is empty"),
        (
            lambda: Suite(
                name="a/b", env_id=ENV, splits={"none": GeneratedSplit(generate=task, size=0)}
            ),
            "a/b/none is empty",
        ),
        (lambda: Suite(name="a/b", env_id=ENV, splits={}), "at least one split"),
        (lambda: SUITE.tasks("trian", limit=1), r"no split 'trian' \(did you mean 'train'\?\)"),
        (lambda: SUITE.task("held_out", 6), r"tasks 0 to 5 \(got 6\)"),
        (lambda: SUITE.task("rows", -1), r"got -1"),
    ],
)
def test_wrong_requests_say_what_is_accepted(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(TaskError, match=message):
        call()


def test_check_leaks_finds_equal_ids() -> None:
    held_out = [task(3, prompt="another"), task(9)]
    with pytest.raises(LeakError, match=r"1 held-out tasks .*\(t3\).*--allow-leak"):
        check_leaks([task(3)], held_out)
    assert check_leaks([task(3)], held_out, allow=True) == ("t3",)


def test_check_leaks_finds_equal_content_under_another_id() -> None:
    # Case and spacing do not make another task.
    leaks = check_leaks(
        [task(1, prompt="What  IS it?")], [task(2, prompt="what is it?")], allow=True
    )
    assert leaks == ("t2",)


def test_check_leaks_passes_disjoint_tasks_and_is_the_users_error() -> None:
    assert check_leaks(SUITE.tasks("rows"), SUITE.tasks("held_out")) == ()
    assert issubclass(LeakError, ConfigError)


# -- rows --------------------------------------------------------------------------------------


def write(
    folder: Path,
    rows: Sequence[object],
    source: str | None = "licence: MIT\norigin: made up: here\n",
) -> Path:
    path = folder / "rows.jsonl"
    path.write_text(
        "\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows), encoding="utf-8"
    )
    if source is not None:
        (folder / "SOURCE").write_text(source, encoding="utf-8")
    return path


ROW = {"id": "a", "env_id": ENV, "prompt": "1+1", "answers": ["2"], "tags": ["easy"]}


def test_read_rows_gives_splits_and_source(tmp_path: Path) -> None:
    path = write(tmp_path, [ROW, "", {**ROW, "id": "b", "split": "held_out"}])
    suite = read_rows(path, name="test/rows")
    assert suite.source == Origin(licence="MIT", origin="made up: here")
    assert [t.id for t in suite.tasks("train")] == ["a"]
    assert suite.tasks("held_out")[0].answers == ("2",)
    assert suite.tasks("held_out")[0].tags == ("easy",)


@pytest.mark.parametrize(
    ("rows", "source", "message"),
    [
        ([ROW], None, "SOURCE is missing"),
        ([ROW], "licence: MIT\n", "'licence:' and 'origin:'"),
        ([], "", "holds no task"),
        ([ROW, "{"], "", "rows.jsonl line 2 is not a task"),
        ([{"prompt": "x"}], "", "line 1 is not a task"),
        ([{**ROW, "answer": "2"}], "", "line 1 is not a task.*answer"),
        # A text is a sequence of texts too: "42" would be taken for the answers "4" and "2".
        ([{**ROW, "answers": "42"}], "", "line 1 is not a task.*'answers' is a list of texts"),
        ([{**ROW, "tags": "easy"}], "", "line 1 is not a task.*'tags' is a list of texts"),
        (["[]"], "", "line 1 is not a task"),
        ([ROW, {**ROW, "env_id": "test/other-v0"}], "", "one environment"),
    ],
)
def test_read_rows_refuses(
    tmp_path: Path, rows: list[object], source: str | None, message: str
) -> None:
    path = write(tmp_path, rows, source)
    with pytest.raises(TaskError, match=message):
        read_rows(path, name="test/rows")


def test_read_rows_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="there is no file"):
        read_rows(tmp_path / "none.jsonl", name="test/rows")


# -- environments as suites --------------------------------------------------------------------


class SumEnv(TextEnv):
    def __init__(self, *, most: int = 1000) -> None:
        super().__init__()
        self.most = most

    def sample_task(self, rng: random.Random) -> Task:
        number = rng.randrange(self.most)
        return Task(
            id=f"n{number}", env_id=self.env_id, prompt=f"{number}+1", answers=(f"{number + 1}",)
        )

    def start(self, task: Task, rng: random.Random) -> str:
        return task.prompt

    def respond(self, action: str) -> Reply:
        return self.finish(outcome=1.0)


@pytest.fixture
def sum_env() -> Iterator[str]:
    register_env(ENV)(SumEnv)
    yield ENV
    registry.unregister_env(ENV)


def test_environment_id_is_a_suite_with_disjoint_splits(sum_env: str) -> None:
    suite = load_suite(sum_env, env_kwargs={"most": 100})
    train, held_out = (suite.tasks(split, limit=200, seed=5) for split in ("train", "held_out"))
    assert check_leaks(train, held_out) == ()
    # 100 different tasks, one in eight held out: both splits see more than one of them.
    assert len({t.content_hash for t in held_out}) > 3
    assert len({t.content_hash for t in train}) > 50
    assert train[0].env_kwargs == {"most": 100}
    assert suite.tasks("train", limit=3) == load_suite(sum_env, env_kwargs={"most": 100}).tasks(
        "train", limit=3
    )


def test_environment_with_one_task_has_no_two_splits(sum_env: str) -> None:
    suite = load_suite(sum_env, env_kwargs={"most": 1})
    with pytest.raises(TaskError, match="too few different tasks"):
        [suite.tasks(split, limit=1) for split in ("train", "held_out")]


def test_unknown_suite_names_the_nearest(sum_env: str) -> None:
    with pytest.raises(TaskError, match=r"'test/sums' \(did you mean 'test/sum-v0'\?\)"):
        load_suite("test/sums")
    with pytest.raises(TaskError, match=r"did you mean 'math/arithmetic'"):
        load_suite("math/arithmetics")


def test_every_suite_is_listed() -> None:
    assert "math/arithmetic" in suites.list_suites()
