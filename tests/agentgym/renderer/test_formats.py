"""The shipped formats with a real tokenizer, against transformers' own rendering."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.records.messages import Message
from agentgym.renderer.base import History, RenderedTurn
from agentgym.renderer.chat import ChatRenderer
from agentgym.renderer.folder import load_renderer
from agentgym.renderer.formats import Fixture, fixture_format

TEXTS = st.text(max_size=24)
EXACT = (Fixture.SMOLLM2, Fixture.CHATML, Fixture.DEFAULT_SYSTEM, Fixture.LAST_DIFFERS)
"""Formats whose bridge gives what a whole rendering gives, if nobody says a control text."""


def talk(
    renderer: ChatRenderer, opening: list[Message], replies: list[tuple[str, Message]]
) -> tuple[int, ...]:
    """Return the whole ids after some turns whose completions were known as text."""
    prompt = renderer.first_prompt(opening).ids
    turns: list[RenderedTurn] = []
    for text, observation in replies:
        ids = renderer.encode_completion(text)
        turns.append(
            RenderedTurn(
                prompt_ids=prompt, sampled_ids=ids, completion=text, observation=observation
            )
        )
        following = renderer.next_prompt(opening, turns)
        prompt = (prompt + ids)[: following.prefix_length] + following.ids
    return prompt


def messages_of(opening: list[Message], replies: list[tuple[str, Message]]) -> list[dict[str, str]]:
    talked = list(opening)
    for text, observation in replies:
        talked += [Message(role="assistant", content=text), observation]
    return [{"role": m.role, "content": m.content} for m in talked]


@pytest.mark.parametrize("history", History)
@pytest.mark.parametrize("name", EXACT)
def test_ids_are_those_of_transformers(
    folders: dict[Fixture, Path], name: Fixture, history: History
) -> None:
    transformers: Any = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(folders[name])
    opening = [
        Message(role="system", content="Answer with a number."),
        Message(role="user", content="What is 37*48?\n\n"),
    ]
    replies = [
        ("<calculator>37*48</calculator>", Message(role="user", content="1776")),
        ("  It is <answer>1776</answer>\n", Message(role="user", content=" again, é中🙂 ")),
    ]
    for start in (0, 1):
        renderer = load_renderer(folders[name], history=history)
        expected = reference.apply_chat_template(
            messages_of(opening[start:], replies), add_generation_prompt=True
        )["input_ids"]
        actual = talk(renderer, opening[start:], replies)
        if name is Fixture.DEFAULT_SYSTEM and history is History.VERBATIM:
            # That template strips what the assistant said; verbatim keeps what was sampled.
            assert reference.decode(actual).replace("  It", "It").replace(
                "</answer>\n", "</answer>"
            ) == reference.decode(expected)
        elif name is Fixture.LAST_DIFFERS and history is History.VERBATIM:
            swapped = renderer.tokenizer.added_tokens
            back = [swapped["<|end|>"] if i == swapped["<|return|>"] else i for i in actual]
            assert back == expected
        else:
            assert list(actual) == expected


def test_bos_comes_once_whoever_renders_a6(folders: dict[Fixture, Path]) -> None:
    transformers: Any = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(folders[Fixture.BOS])
    for history in History:
        renderer = load_renderer(folders[Fixture.BOS], history=history)
        opening = [Message(role="user", content="hello")]
        ids = renderer.first_prompt(opening).ids
        expected = reference.apply_chat_template(
            messages_of(opening, []), add_generation_prompt=True
        )["input_ids"]
        assert list(ids) == expected
        bos = renderer.tokenizer.added_tokens["<s>"]
        whole = talk(renderer, opening, [("hello", Message(role="user", content="again"))])
        assert (whole[0], whole.count(bos)) == (bos, 1)


def test_profiles_say_what_each_format_does(folders: dict[Fixture, Path]) -> None:
    profiles = {name: load_renderer(folder).profile for name, folder in folders.items()}
    assert [n for n, p in profiles.items() if not p.has_system] == [Fixture.BOS]
    assert [n for n, p in profiles.items() if not p.has_tool] == [Fixture.DEFAULT_SYSTEM]
    assert {n: p.opener for n, p in profiles.items() if p.opener} == {
        Fixture.DROPS_THINK: "<think>\n"
    }
    assert set(profiles[Fixture.LAST_DIFFERS].closing) == {"<|end|>", "<|return|>"}
    assert set(profiles[Fixture.BOS].closing) == {"</s>"}


@pytest.mark.parametrize("name", Fixture)
def test_both_modes_open_alike_and_differ_in_id(
    folders: dict[Fixture, Path], name: Fixture
) -> None:
    verbatim, template = (load_renderer(folders[name], history=mode) for mode in History)
    opening = [Message(role="user", content="hello again")]
    assert verbatim.first_prompt(opening) == template.first_prompt(opening)
    assert verbatim.id != template.id


@pytest.mark.parametrize("name", Fixture)
def test_any_text_of_the_world_gives_only_the_templates_control_tokens(
    folders: dict[Fixture, Path], name: Fixture
) -> None:
    special = fixture_format(name).special
    renderers = [load_renderer(folders[name], history=history) for history in History]
    hostile = st.lists(st.sampled_from([*special, "<", "|>", "a", " ", "\n"]), max_size=6)

    @given(text=TEXTS | hostile.map("".join))
    def check(text: str) -> None:
        for renderer in renderers:
            steering = {renderer.tokenizer.added_tokens[token] for token in special}
            replies = [("hello", Message(role="user", content="1776"))]
            plain = talk(renderer, [Message(role="user", content="x")], replies)
            replies = [("hello", Message(role="user", content=text))]
            mixed = talk(renderer, [Message(role="user", content=text)], replies)
            counts = [sum(i in steering for i in ids) for ids in (plain, mixed)]
            assert counts[0] == counts[1]
            shown = renderer.profile.strip(Message(role="user", content=text))
            assert renderer.tokenizer.decode(mixed).count(shown) >= 2 or not shown

    check()


@pytest.mark.parametrize("name", Fixture)
def test_spans_cover_every_prompt(folders: dict[Fixture, Path], name: Fixture) -> None:
    for history in History:
        renderer = load_renderer(folders[name], history=history)
        opening = [Message(role="user", content="What is 37*48?")]
        first = renderer.first_prompt(opening)
        sampled = renderer.encode_completion("hello</think>\n1776")
        turn = RenderedTurn(
            prompt_ids=first.ids,
            sampled_ids=sampled,
            completion="",
            observation=Message(role="user", content="again"),
        )
        second = renderer.next_prompt(opening, [turn])
        for prompt in (first, second):
            edges = [(span.start, span.stop) for span in prompt.spans]
            assert edges[0][0] == 0
            assert edges[-1][1] == len(prompt.ids)
            assert all(a[1] == b[0] for a, b in pairwise(edges))


def test_smollm2_format_acts_as_the_models_own(tmp_path: Path) -> None:
    models = pytest.importorskip("agentgym.trainers.models.smollm2")
    folder = models.cache_folder() / "models"
    found = sorted(folder.glob("SmolLM2-135M-Instruct*/chat_template.jinja"))
    if not found:
        pytest.skip("SmolLM2 has not been converted on this machine")
    own = load_renderer(found[0].parent)
    ours = load_renderer(found[0].parent, template=fixture_format(Fixture.SMOLLM2).template)
    for opening in (
        [Message(role="user", content=" hi\n")],
        [Message(role="system", content="Be short."), Message(role="user", content="hi")],
    ):
        replies = [("ok", Message(role="tool", content="<|im_end|>")), ("ok", opening[-1])]
        assert talk(own, opening, replies) == talk(ours, opening, replies)


# Reasoning is shown, spelled anew, in turns after the last user message, and nowhere before it;
# results of tools stand inside a user message.
KEEPS_RECENT_THINK = """
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif m.role == 'assistant' and '</think>' in m.content %}
{%- set said = m.content.split('</think>')[-1].lstrip('\\n') %}
{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{{- '<|im_start|>assistant\\n' }}
{{- '<think>\\n' + thought + '\\n</think>\\n\\n' if loop.index0 > ns.last else '' }}
{{- said + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


@pytest.mark.parametrize(
    ("role", "goes_on"), [("tool", [True, True, False]), ("user", [False, True, False])]
)
def test_recent_reasoning_goes_on_only_where_the_template_spells_it_alike_a4(
    folders: dict[Fixture, Path], role: str, goes_on: list[bool]
) -> None:
    # Turn 1 reasons as the template spells it, turn 2 does not reason, turn 3 spells it otherwise.
    said = ["<think>\nabc\n</think>\n\nfoo", "plain", "<think>odd</think>bar"]
    for history in History:
        renderer = load_renderer(
            folders[Fixture.CHATML], history=history, template=KEEPS_RECENT_THINK
        )
        opening = [Message(role="user", content="hello")]
        prompt = renderer.first_prompt(opening).ids
        turns: list[RenderedTurn] = []
        for text, goes in zip(said, goes_on, strict=True):
            ids = renderer.encode_completion(text)
            observation = Message(role=role, content="1776")
            turns.append(
                RenderedTurn(
                    prompt_ids=prompt, sampled_ids=ids, completion=text, observation=observation
                )
            )
            following = renderer.next_prompt(opening, turns)
            is_whole = following.prefix_length == len(prompt) + len(ids)
            assert is_whole == (goes or history is History.VERBATIM)
            prompt = (prompt + ids)[: following.prefix_length] + following.ids
        talked = messages_of(opening, [(turn.completion, turn.observation) for turn in turns])
        whole = renderer.template.render(
            [Message(**message) for message in talked], add_generation_prompt=True
        )
        if history is History.TEMPLATE:
            assert renderer.tokenizer.decode(prompt) == whole
