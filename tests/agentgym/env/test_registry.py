"""The registry: ids, versions, near misses, extras, entry points, Gymnasium."""

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from agentgym.env import registry
from agentgym.env.contract import Reply, TextEnv
from agentgym.env.registry import register_env
from agentgym.errors import MissingExtraError, RegistryError


class Door(TextEnv):
    def __init__(
        self, *, size: int = 3, colour: str = "red", render_mode: str | None = None
    ) -> None:
        super().__init__(render_mode=render_mode)
        self.size, self.colour = size, colour

    def start(self, task: object, rng: object) -> str:
        return f"{self.size} {self.colour}"

    def respond(self, action: str) -> Reply:
        return self.finish(outcome=1.0)


class OtherDoor(Door):
    pass


@pytest.fixture
def clean() -> Iterator[None]:
    before = set(registry.list_envs())
    yield
    for env_id in set(registry.list_envs()) - before:
        registry.unregister_env(env_id)


@pytest.mark.usefixtures("clean")
def test_make_gives_a_bare_instance_with_its_arguments() -> None:
    register_env("test/door-v0", env_kwargs={"size": 5}, max_instances=2)(Door)
    env = registry.make("test/door-v0", colour="blue")
    assert type(env) is Door
    assert (env.size, env.colour) == (5, "blue")
    assert env.spec is not None
    assert env.spec.id == env.env_id == "test/door-v0"
    assert env.spec.kwargs == {"size": 5, "colour": "blue"}
    assert registry.spec("test/door-v0").max_instances == 2
    assert registry.spec("test/door-v0").family == "test"
    assert registry.make("test/door-v0", size=7).size == 7


@pytest.mark.usefixtures("clean")
def test_gymnasium_make_takes_the_same_id_and_arguments() -> None:
    register_env("test/door-v0", env_kwargs={"size": 5})(Door)
    env = gymnasium.make("test/door-v0", colour="blue")
    inner = env.unwrapped
    assert isinstance(inner, Door)
    assert (inner.size, inner.colour, inner.env_id) == (5, "blue", "test/door-v0")
    env.close()


def test_import_of_the_package_tells_gymnasium_the_built_in_ids() -> None:
    code = 'import gymnasium; gymnasium.make("agentgym:math/arithmetic-v0"); print("made")'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "made\n"


@pytest.mark.usefixtures("clean")
def test_taken_id_raises_and_the_same_class_does_not() -> None:
    register_env("test/door-v0")(Door)
    register_env("test/door-v0")(Door)
    with pytest.raises(RegistryError, match=r"'test/door-v0' is taken by .*:Door .*:OtherDoor"):
        register_env("test/door-v0")(OtherDoor)


@pytest.mark.parametrize(
    "env_id", ["door-v0", "test/door", "test/door-v", "a/b/c-v0", "test/-v0", ""]
)
def test_malformed_id_raises(env_id: str) -> None:
    with pytest.raises(RegistryError, match=r"family/name-vN"):
        register_env(env_id)(Door)


@pytest.mark.usefixtures("clean")
def test_unknown_id_names_the_nearest() -> None:
    register_env("test/door-v0")(Door)
    with pytest.raises(RegistryError, match=r"'test/dor-v0' \(did you mean 'test/door-v0'\?\)"):
        registry.make("test/dor-v0")


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("asked", ["test/door-v0", "test/door-v11"])
def test_other_version_names_the_newest(asked: str) -> None:
    # As numbers: v10 is newer than v9.
    register_env("test/door-v9")(Door)
    register_env("test/door-v10")(OtherDoor)
    with pytest.raises(RegistryError, match=r"version that exists is 'test/door-v10'"):
        registry.make(asked)


@pytest.mark.usefixtures("clean")
def test_b5_an_id_without_a_version_is_the_newest_one() -> None:
    register_env("test/door-v9")(Door)
    register_env("test/door-v10")(OtherDoor)
    assert registry.is_known("test/door")
    assert registry.spec("test/door").id == "test/door-v10"
    made = registry.make("test/door")
    assert isinstance(made.unwrapped, OtherDoor)
    assert made.unwrapped.spec is not None
    assert made.unwrapped.spec.id == "test/door-v10"  # what is recorded has the version
    assert not registry.is_known("test/doo")


@pytest.mark.usefixtures("clean")
def test_unregistered_id_is_unknown_here_and_to_gymnasium() -> None:
    register_env("test/door-v0")(Door)
    registry.unregister_env("test/door-v0")
    assert "test/door-v0" not in registry.list_envs()
    assert "test/door-v0" not in gymnasium.registry


def install(folder: Path, name: str, code: str, entry_points: str) -> None:
    """Lay out what pip would install of a package."""
    (folder / f"{name}.py").write_text(textwrap.dedent(code), encoding="utf-8")
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[agentgym.envs]\n" + entry_points)


def run(folder: Path, code: str) -> str:
    program = f"import sys; sys.path.insert(0, {str(folder)!r})\n{textwrap.dedent(code)}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ENV_CODE = """
    import agentgym
    class Lamp(agentgym.TextEnv):
        def start(self, task, rng): return "on or off?"
        def respond(self, action): return self.finish(outcome=float(action == "on"))
"""


def test_entry_point_registers_without_importing(tmp_path: Path) -> None:
    install(tmp_path, "lamp_pkg", ENV_CODE, "lab/lamp-v0 = lamp_pkg:Lamp\n")
    out = run(
        tmp_path,
        """
        import agentgym, gymnasium
        assert "lab/lamp-v0" in agentgym.env.registry.list_envs()
        assert "lamp_pkg" not in sys.modules
        env = agentgym.make("lab/lamp-v0")
        print(env.reset(seed=1)[0], env.step("on")[1], gymnasium.make("lab/lamp-v0").spec.id)
        """,
    )
    assert out == "on or off? 1.0 lab/lamp-v0\n"


def test_entry_point_on_a_taken_id_raises(tmp_path: Path) -> None:
    install(tmp_path, "lamp_pkg", ENV_CODE, "math/arithmetic-v0 = lamp_pkg:Lamp\n")
    out = run(
        tmp_path,
        """
        import agentgym
        from agentgym.errors import RegistryError
        for make in (agentgym.make, __import__("gymnasium").make):
            try:
                make("math/arithmetic-v0")
            except RegistryError as error:
                print(str(error)[:52])
        # One broken id takes no other away.
        print(agentgym.make("games/wordle-v0").env_id)
        """,
    )
    line = "'math/arithmetic-v0' is taken by agentgym.envs.math.\n"
    assert out == line * 2 + "games/wordle-v0\n"


def test_missing_extra_raises_with_the_pip_line(tmp_path: Path) -> None:
    install(
        tmp_path,
        "lamp_pkg",
        "import package_that_is_not_there\n",
        "lab/lamp-v0 = lamp_pkg:Lamp [search]\n",
    )
    out = run(
        tmp_path,
        """
        import agentgym
        for make in (agentgym.make, __import__("gymnasium").make):
            try:
                make("lab/lamp-v0")
            except agentgym.errors.MissingExtraError as error:
                print(error)
        """,
    )
    line = "lab/lamp-v0 needs an optional package: pip install 'agentgym-rl-kit[search]'\n"
    assert out == line * 2


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no colon", "'module:Class'"),
        ("agentgym.no_such_module:Env", "cannot import"),
        ("agentgym.env.contract:NoSuchEnv", "has no 'NoSuchEnv'"),
    ],
)
def test_bad_target_says_what_is_wrong(
    target: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = importlib.import_module("agentgym.envs").ENVS
    monkeypatch.setitem(table, "test/bad-v0", target)
    monkeypatch.setattr(registry, "_is_collected", False)
    with pytest.raises(RegistryError, match=message):
        registry.load("test/bad-v0")
    registry._conflicts.pop("test/bad-v0", None)
    if "test/bad-v0" in registry.list_envs():
        registry.unregister_env("test/bad-v0")


def test_missing_extra_is_an_import_error() -> None:
    assert issubclass(MissingExtraError, ImportError)


def test_module_before_the_id_is_imported_and_its_own_registration_stands(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    code = readme.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "capitals.py").write_text(code, encoding="utf-8")
    out = run(
        tmp_path,
        """
        import agentgym
        from agentgym.cli.main import main
        env = agentgym.make("capitals:demo/capitals-v0")
        print(type(env).__name__, env.env_id, agentgym.make("demo/capitals-v0").env_id)
        print(main(["envs", "check", "capitals:demo/capitals-v0", "--json"]))
        """,
    )
    lines = out.splitlines()
    assert (lines[0], lines[-1]) == ("Capitals demo/capitals-v0 demo/capitals-v0", "0")
