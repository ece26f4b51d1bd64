"""F21: templates that would hold a process for ever or fill its memory, in their full size.

The child that renders them may have a gigabyte and two minutes of the processor for all of them.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.attack

MOST_MEMORY_BYTES = 1_000_000_000
MOST_CPU_S = 120
TEXT = "{% set a = 'x' * 9999999 %}"
LIST = "{% set a = range(99999) | list %}"
BOMBS = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) if false %}{% endfor %}" * 1_000,
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% for i in [1, 1] recursive %}{{ loop([1, 1]) if loop.depth < 90 }}{% endfor %}",
    TEXT + "{% for i in range(99999) %}{{ 'y' in a }}{% endfor %}",
    TEXT + "{% set b = a ~ '' %}{% for i in range(99999) %}{{ a == b }}{% endfor %}",
    TEXT + "{% for i in range(99999) %}{{ a[1:] | length }}{% endfor %}",
    TEXT + "{% for i in range(99999) %}{{ a | upper | length }}{% endfor %}",
    TEXT + "{% for i in range(99999) %}{{ a.split('y') | length }}{% endfor %}",
    TEXT + "{% for i in range(99999) %}{% set b = a ~ i %}{% endfor %}",
    LIST + "{% for i in range(99999) %}{{ a | sort | length }}{% endfor %}",
    LIST + "{% for i in range(99999) %}{{ -1 in a }}{% endfor %}",
    "{{ ([range(99999)] * 1000) | map('list') | list | length }}",
    "{{ ([range(99999)] * 1000) | map('join') | list | length }}",
    "{{ (['x' * 99999] * 1000) | tojson | length }}",
    "{{ (['x' * 99999] * 1000) | join | length }}",
    "{{ (['x' * 99999] * 1000) | string | length }}",
    "{{ 'x' * 10**10 }}",
    "{{ 10**(10**10) }}",
    "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor %}",
)
CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
resource.setrlimit(resource.RLIMIT_CPU, ({cpu}, {cpu}))
from agentgym.errors import RenderError
from agentgym.renderer.template import ChatTemplate
for source in {bombs!r}:
    try:
        ChatTemplate(source).render((), add_generation_prompt=True)
    except RenderError as error:
        print(str(error).partition(": ")[2])
    else:
        sys.exit("rendered: " + source)
"""


def test_f21_bombs_end_in_a_sentence_each() -> None:
    code = CHILD.format(memory=MOST_MEMORY_BYTES, cpu=MOST_CPU_S, bombs=BOMBS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    reasons = done.stdout.splitlines()
    assert len(reasons) == len(BOMBS)
    assert {reason.partition(" more than ")[0] for reason in reasons} <= {
        "it takes",
        "it makes a value of",
        "it makes a number of",
    }, reasons
