"""F21, the class *unbounded foreign code*: a chat template ends, within bounds of work and memory.

What makes much out of little is refused before it is made; what only takes long is counted. The
templates in their full size are in `tests/attack/test_templates.py`.
"""

from __future__ import annotations

import pytest

from agentgym.errors import RenderError
from agentgym.records.messages import Message
from agentgym.renderer import template_meter
from agentgym.renderer.formats import Fixture, fixture_format
from agentgym.renderer.template import ChatTemplate

CONVERSATION = (Message(role="user", content="hi"), Message(role="assistant", content="yo"))
GROWING = (
    "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = GROWN %}{% endfor %}"
)
RECURSIVE = "{% for i in [1, 1] recursive %}{{ loop([1, 1]) if loop.depth < 50 }}{% endfor %}"
CALLING = "{% macro m(n) %}{% if n %}{{ m(n - 1) ~ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}"
COUNTING = """{% set ns = namespace(n=0) %}
{%- for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}
{{- ns.n }}{{ 'x' if 'i' in messages[0].content and ns.n is number else 'y' }}"""
MACROS = """{% macro m(x) %}[{{ x }}{{ caller() if caller }}]{% endmacro %}
{{- m(1) }}{% call m(2) %}c{% endcall %}"""
PAIRS = """{% for a, b in {'k': 'v'}.items() %}{{ a }}={{ b }}{% endfor %}
{%- for x in [1, [2]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}"""


def render(source: str, messages: tuple[Message, ...] = CONVERSATION) -> str:
    return ChatTemplate(source).render(messages, add_generation_prompt=True)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) if false %}{% endfor %}",
        RECURSIVE,
        CALLING,
        "{{ range(99999) | list | length }}",
        "{{ ([range(9999)] * 1000) | map('list') | list | length }}",
        "{{ range(99999) | map('string') | join }}",
        "{% set a = 'x' * 99999 %}{% for i in range(999) %}{{ 'y' in a }}{% endfor %}",
        "{% set a = 'x' * 99999 %}{% for i in range(999) %}{{ a == a[1:] }}{% endfor %}",
    ],
)
def test_f21_work_is_counted(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_meter, "MOST_STEPS", 20_000)
    with pytest.raises(RenderError, match="it takes more than 20,000 steps") as caught:
        render(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 'x' * 10**9 }}", "16,000,000 characters"),
        ("{{ 10**9 * 'x' }}", "16,000,000 characters"),
        ("{{ [1] * 10**9 }}", "16,000,000 characters"),
        ("{{ 10**(10**10) }}", "4,096 bits"),
        (GROWING.replace("START", "10").replace("GROWN", "ns.x * ns.x"), "4,096 bits"),
        (GROWING.replace("START", "'x'").replace("GROWN", "ns.x ~ ns.x"), "characters"),
        (GROWING.replace("START", "'x'").replace("GROWN", "ns.x + ns.x"), "characters"),
        (GROWING.replace("START", "'x'").replace("GROWN", "[ns.x, ns.x]"), "characters"),
        (GROWING.replace("START", "1").replace("GROWN", "(ns.x, ns.x)"), "characters"),
        (GROWING.replace("START", "1").replace("GROWN", "{'a': ns.x, 'b': ns.x}"), "characters"),
        ("{{ ('x' * 99999).replace('x', 'y' * 99999) }}", "characters"),
        ("{{ ('x' * 99999) | replace('x', 'y' * 99999) }}", "characters"),
        ("{{ ('y' * 99999).join(range(9999) | map('string')) }}", "characters"),
        ("{{ range(9999) | join('y' * 99999) }}", "characters"),
        ("{{ ('\\n' * 99999) | indent(9999) }}", "characters"),
        ("{% for i in range(999) %}{{ 'x' * 99999 }}{% endfor %}", "characters"),
        ("{% set y %}{% for i in range(999) %}{{ 'x' * 99999 }}{% endfor %}{% endset %}", "char"),
        ("{{ '%999999999d' % 1 }}", "fields wider than 10,000"),
        ("{{ '%*d' % (10**9, 1) }}", "fields wider than 10,000"),
        ("{{ '%999999999d' | format(1) }}", "fields wider than 10,000"),
        ("{{ '{:999999999}'.format(1) }}", "fields wider than 10,000"),
        ("{{ '{:{w}}'.format(1, w=10**9) }}", "fields wider than 10,000"),
        ("{{ 'x' | center(10**9) }}", "a number above 100,000"),
        ("{{ [1] | batch(10**9, 'x') | list }}", "a number above 100,000"),
        ("{{ [1] | slice(10**9) | list }}", "a number above 100,000"),
        ("{{ 5 | round(-10**9) }}", "a number above 100,000"),
        ("{{ [1] | tojson(indent=99) }}", "indents JSON by more than 16"),
        ("{{ [1, 2] | tojson(separators=('x' * 999, 'y')) }}", "indents JSON by more than 16"),
        ("{{ [[1], [2]] | sum(start=[]) }}", "sums up what are no numbers"),
        ("{{ 'x'.ljust(10**9) }}", "'ljust' of 'str' object is unsafe"),
        ("{{ '\\t'.expandtabs(10**9) }}", "'expandtabs' of 'str' object is unsafe"),
        ("{{ '{x}'.format_map({'x': 1}) }}", "unsafe"),
        ("{{ (5).to_bytes(10**9, 'big') }}", "'to_bytes' of 'int' object is unsafe"),
        ("{{ lipsum(n=10**7) }}", "'lipsum' is undefined"),
        ("{{ '<!--' | striptags }}", "No filter named 'striptags'"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself without end"),
        ("{% include 'x' %}", "no loader"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[9].content.x }}", "no element 9"),
        ("{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}", "calls itself without end"),
        ("{% for i in [1] %}" * 30 + "{% endfor %}" * 30, "too many statically nested blocks"),
        ("{{ " + "9" * 5_000 + " }}", "Exceeds the limit"),
        ("x" * 500_001, "more than 500,000 characters"),
    ],
)
def test_f21_what_cannot_be_rendered_is_one_sentence(source: str, reason: str) -> None:
    with pytest.raises(RenderError) as caught:
        render(source)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_f21_value_that_is_shared_weighs_as_often_as_it_is_met() -> None:
    """A list that holds one list twice, 60 deep, has 2**60 ends: not all are met."""
    value: list[object] = ["x"]
    for _ in range(60):
        value = [value, value]
    assert template_meter.weight(value) > template_meter.MOST_CHARS
    # 64 for each of the list and the two texts, and 3 + 4 characters.
    assert template_meter.weight(["abc", "defg"]) == 3 * 64 + 7


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ '%s %s' % ('a', 3) }}{{ '{}-{x}'.format(1, x=2) }}{{ 'a' ~ 1 }}", "a 31-2a1"),
        ("{{ '%05.1f' | format(2.5) }}{{ 'ab'.replace('a', 'cc') | upper }}", "002.5CCB"),
        ("{% for m in messages if m.role != 'user' %}{{ loop.index }}{% endfor %}", "1"),
        ("{% for m in messages | reverse %}{{ m['role'][:1] }}{% endfor %}", "au"),
        ("{{ messages[::-1] | map(attribute='role') | join(', ') }}", "assistant, user"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ {'b': [1, 'é<']} | tojson(indent=1) }}", '{\n "b": [\n  1,\n  "é<"\n ]\n}'),
        ("{{ 'a</think>\nb'.split('</think>')[-1].lstrip('\n') }}", "b"),
        ("{{ (7 * 6, 2 ** 3, 7 % 4, [1] * 2) }}", "(42, 8, 3, [1, 1])"),
        (COUNTING, "2x"),
        (MACROS, "[1][2c]"),
        (PAIRS, "k=v12"),
    ],
)
def test_f21_ordinary_templates_render_as_before(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.parametrize("name", list(Fixture))
def test_f21_long_conversations_are_far_from_the_bounds(
    name: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 messages, nine of ten with 100 KB: 9 MB in all, in a fifth of the steps."""
    monkeypatch.setattr(template_meter, "MOST_STEPS", template_meter.MOST_STEPS // 5)
    chat = fixture_format(name)
    template = ChatTemplate(chat.template, names={"bos_token": "<s>", "eos_token": "</s>"})
    turns = [
        Message(role=("user", "assistant")[index % 2], content="x" * (100_000 if index % 10 else 5))
        for index in range(100)
    ]
    assert len(template.render(turns, add_generation_prompt=True)) > 9_000_000
