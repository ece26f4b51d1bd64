"""`web/miniwob-v0` in a real browser: each listed page solved by its script, rewards, probes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs the extra web")
pytest.importorskip("miniwob", reason="needs the extra web")

import agentgym
from agentgym import seeding
from agentgym.env import registry
from agentgym.envs.web.browser.context_pool import MOST_PASSED_OVER
from agentgym.envs.web.browser.server import Request
from agentgym.envs.web.miniwob.site import HOST, page_names, respond
from agentgym.envs.web.miniwob.tasks import ENV_ID, generate_task, solved_pages
from agentgym.envs.web.probes import KEYS, PAYLOADS
from agentgym.errors import EnvError
from agentgym.records import ErrorKind, Task
from agentgym.rollouts.scoring import SUCCESS

pytestmark = pytest.mark.service
EPISODES = 10
SAMPLED = 1
"""Episodes of each page on every commit; the soak test plays all of them."""


@pytest.fixture(scope="module")
def env(chromium: str) -> Iterator[Any]:
    env = registry.make(ENV_ID)
    yield env
    env.close()


def task_of(page: str, seed: int) -> Task:
    return Task(id=f"{page}-{seed}", env_id=ENV_ID, payload={"page": page, "seed": seed})


def start(env: Any, page: str, seed: int = 3) -> str:
    return env.reset(seed=0, options={"task": task_of(page, seed)})[0]


def play_expert(env: Any, task: Task) -> tuple[float, list[str]]:
    """Return the raw reward of the scripted solution, and what was seen."""
    seen = [env.reset(seed=0, options={"task": task})[0]]
    for _ in range(env.limits.max_turns):
        observation, _, terminated, _, info = env.step(env.expert())
        seen.append(observation)
        if terminated:
            return info["rewards"]["raw_reward"], seen
    raise AssertionError(f"{task.id} has no end: {seen[-1]}")


@pytest.mark.parametrize("page", solved_pages())
def test_script_solves_the_page(env: Any, page: str) -> None:
    for number in range(SAMPLED):
        task = generate_task(number, split="held_out", task=page)
        assert play_expert(env, task)[0] == 1.0, task.id


@pytest.mark.soak
@pytest.mark.parametrize("page", solved_pages())
def test_script_solves_ten_episodes_of_the_page(env: Any, page: str) -> None:
    for number in range(EPISODES):
        task = generate_task(number, split="held_out", task=page)
        assert play_expert(env, task)[0] == 1.0, task.id


@pytest.mark.soak
def test_every_page_of_the_package_opens(env: Any) -> None:
    """Each has words and something to act on."""
    assert len(page_names()) >= 125
    for page in page_names():
        observation = start(env, page)
        assert env.goal, page
        assert "[1] " in observation, page


_PICTURES = 40
"""Taken at most: the compositor of a busy machine draws a sprite a little after it has a size."""


def seen_of(env: Any, page: str, seed: int) -> tuple[str, bytes]:
    """Return what an episode starts with, in words and as a picture, once spares are ready."""
    observation = start(env, page, seed)
    browser = env.session.browser
    browser.run(browser.spares.settled(), timeout_s=30)
    return observation, env.session.screenshot()


def sees_again(env: Any, page: str, seed: int, before: tuple[str, bytes]) -> bool:
    """Return whether an episode starts with the same words, and comes to the same picture."""
    observation, picture = seen_of(env, page, seed)
    for _ in range(_PICTURES):
        if picture == before[1]:
            break
        picture = env.session.screenshot()
    return (observation, picture) == before


def check_start_is_the_same_however_it_was_loaded(env: Any, page: str) -> None:
    other = "click-dialog" if page != "click-dialog" else "click-button"
    for _ in range(2 + MOST_PASSED_OVER):  # nothing else is left then
        seen_of(env, other, 1)
    assert spare_paths(env) == {path_of(other)}
    in_place_of_another = seen_of(env, page, 5)
    another_seed = seen_of(env, page, 6)
    assert path_of(page) in spare_paths(env)
    assert sees_again(env, page, 5, in_place_of_another), page
    assert sees_again(env, page, 6, another_seed), page


def spare_paths(env: Any) -> set[str]:
    """Return the pages that are made ahead, without those of the tests before."""
    paths = {spare.path for spare in env.session.browser.spares._spares}
    return {path for path in paths if path.startswith("/miniwob/")}


def path_of(page: str) -> str:
    return f"/miniwob/{page}.html"


@pytest.mark.parametrize("page", ["click-button", "email-inbox", "guess-number", "book-flight"])
def test_page_loaded_ahead_starts_as_any(env: Any, page: str) -> None:
    """A page draws its problem when it is started, with the task's seed, not when it loads."""
    check_start_is_the_same_however_it_was_loaded(env, page)


@pytest.mark.soak
@pytest.mark.parametrize("page", page_names())
def test_every_page_loaded_ahead_starts_as_any(env: Any, page: str) -> None:
    check_start_is_the_same_however_it_was_loaded(env, page)


def test_fields_that_were_meant_are_not_shown(env: Any) -> None:
    """`email-inbox-forward-nl` gives its words with the fields that a scorer would want."""
    observation = start(env, "email-inbox-forward-nl")
    assert observation.startswith("Task: Amargo is waiting for the email by Lissie.")
    assert "fields" not in observation


def test_expert_plays_through_the_rollout(chromium: str) -> None:
    trajectories = agentgym.rollout(
        ENV_ID, "expert", tasks=2, env_kwargs={"task": "click-button"}, max_concurrent=2
    )
    assert [trajectory.outcome for trajectory in trajectories] == [1.0, 1.0]
    assert [len(trajectory.turns) for trajectory in trajectories] == [1, 1]


def test_small_raw_reward_is_no_success_k1(env: Any) -> None:
    """`find-greatest` gives 0.1 for turning a card that is not the greatest, then submitting."""
    outcomes: dict[float, tuple[float, float]] = {}
    for card in (1, 2, 3):
        start(env, "find-greatest")
        env.step(f"<click>{card}</click>")
        submit = env.view.first("button").id
        _, reward, terminated, _, info = env.step(f"<click>{submit}</click>")
        assert terminated
        outcomes[info["rewards"]["raw_reward"]] = (info["outcome"], reward)
    assert outcomes == {1.0: (1.0, 1.0), 0.1: (0.1, 0.1)}
    assert SUCCESS == 1.0


def test_negative_raw_reward_is_no_outcome_below_zero(env: Any) -> None:
    """Pressing a wrong button gives -1."""
    start(env, "click-button")
    name = env.goal.split('"')[1]
    wrong = next(node for node in env.view.all("button") if node.name != name)
    _, reward, terminated, _, info = env.step(f"<click>{wrong.id}</click>")
    assert (reward, terminated, info["outcome"]) == (0.0, True, 0.0)
    assert info["rewards"] == {"raw_reward": -1.0}


def test_delay_of_the_model_changes_nothing_k11(env: Any) -> None:
    """`button-delay` measures the time between two clicks; only actions take time."""
    task = task_of("button-delay", 3)
    seen: list[tuple[float, list[str]]] = [play_expert(env, task)]
    env.reset(seed=0, options={"task": task})
    actions, observations = 0, []
    while True:
        threading.Event().wait(1.0)
        observation, _, terminated, _, info = env.step(env.expert())
        observations.append(observation)
        actions += 1
        if terminated:
            break
    assert (info["rewards"]["raw_reward"], observations) == (1.0, seen[0][1][1:])
    assert actions >= 2


def test_answer_ends_the_episode_without_reward(env: Any) -> None:
    start(env, "click-button")
    _, reward, terminated, _, info = env.step("<answer>done</answer>")
    assert (reward, terminated, info["outcome"]) == (0.0, True, 0.0)


def test_mistake_is_told_with_the_page(env: Any) -> None:
    start(env, "click-button")
    observation, _, terminated, _, info = env.step("<click>99</click>")
    assert "Error: there is no element 99 on this page" in observation
    assert "URL: http://miniwob.test/miniwob/click-button.html" in observation
    assert (terminated, info["error_kind"]) == (False, ErrorKind.MODEL)


def test_typed_script_is_not_run(env: Any) -> None:
    """What is typed lands on this page as HTML: the policy keeps it from running."""
    start(env, "click-button")
    for payload in PAYLOADS:
        env.session.evaluate(
            "html => { document.getElementById('area').innerHTML = html;"
            " const script = document.createElement('script'); script.text = 'window.ran = 1';"
            " document.body.append(script); }",
            payload,
        )
        assert env.session.evaluate("() => window.ran") is None
    env.session.evaluate("() => { location.href = 'javascript:window.ran = 1'; }")
    _, _, terminated, _, _ = env.step("<press>Escape</press>")
    assert env.session.evaluate("() => [window.ran ?? null, WOB_DONE_GLOBAL]") == [None, False]
    assert not terminated


@pytest.mark.parametrize("key", KEYS)
def test_browser_keys_are_refused(env: Any, key: str) -> None:
    start(env, "enter-text")
    observation, *_ = env.step(f"<press>{key}</press>")
    assert f"Error: unknown key '{key}'" in observation


def test_there_is_no_tool_for_addresses_or_script(env: Any) -> None:
    names = [tool.name for tool in env.tools]
    assert names == ["click", "type", "select", "press", "scroll", "back", "tab", "handle_dialog"]
    start(env, "click-button")
    observation, *_ = env.step("<goto>javascript:core.endEpisode(1)</goto>")
    assert observation.startswith("unknown tool 'goto'")
    observation, *_ = env.step("<back></back>")
    assert "Error: there is no page to go back to" in observation


def test_score_and_cover_are_not_shown(env: Any) -> None:
    observation = start(env, "click-button")
    assert "START" not in observation
    assert "Last reward" not in observation


def test_probes_of_the_family_earn_nothing(env: Any) -> None:
    for name, probe in env.extra_probes().items():
        for page in ("enter-text", "terminal", "social-media"):
            observation = start(env, page)
            rng = seeding.rng(name, page)
            for _ in range(8):
                observation, reward, terminated, _, _ = env.step(probe(env, observation, rng))
                assert reward <= 0.0
                if terminated:
                    break


def test_screenshots_come_with_the_observation(tmp_path: Path, chromium: str) -> None:
    env = registry.make(ENV_ID, screenshots=str(tmp_path))
    try:
        start(env, "click-checkboxes")
        *_, info = env.step("<click>1</click>")
        (picture,) = info["attachments"]
        assert picture.media_type == "image/png"
        assert Path(picture.path).read_bytes().startswith(b"\x89PNG")
        assert Path(picture.path).name == f"{picture.sha256[:16]}.png"
    finally:
        env.close()


def test_unknown_page_is_named(chromium: str) -> None:
    with pytest.raises(EnvError, match=r"no page 'click-buton' \(did you mean 'click-button'\?\)"):
        registry.make(ENV_ID, task="click-buton")


def test_page_without_a_solution_says_so(env: Any) -> None:
    start(env, "draw-line")
    with pytest.raises(NotImplementedError, match="draw-line"):
        env.expert()


@pytest.mark.parametrize("path", ["/../__init__.py", "/miniwob/../../envs/__init__.py", "/nope"])
def test_site_serves_pages_only(path: str) -> None:
    assert respond(Request(method="GET", host=HOST, path=path)).status == 404


def test_pages_carry_a_policy_of_their_own_script() -> None:
    response = respond(Request(method="GET", host=HOST, path="/miniwob/click-button.html"))
    policy = response.headers["Content-Security-Policy"]
    assert "script-src 'self' 'sha256-" in policy
    assert "'unsafe-inline'" not in policy
    assert "'unsafe-eval'" not in policy
