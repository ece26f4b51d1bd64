"""From rendered turns to training rows: masks come from provenance (pitfalls B).

Toy ids: <B>=0 he=1 llo=2 hello=3 newline=4 <S>=8 <E>=9, any other character 256 + its code.
"""

from __future__ import annotations

from agentgym.records import (
    Completion,
    SpanKind,
    TokenTrace,
    Trajectory,
    Turn,
    VersionRun,
)
from agentgym.records.messages import Message
from agentgym.renderer.base import History, RenderedTurn
from agentgym.renderer.chat import ChatRenderer
from agentgym.renderer.template import ChatTemplate
from agentgym.rollouts.samples import ROLE_KINDS, to_samples
from agentgym.testing.toy_tokenizer import ToyTokenizer

# A message is its content and <E>; the generation prompt is <S>.
PLAIN = (
    "{% for m in messages %}{{ '<S>' if m.role == 'assistant' }}{{ m.content + '<E>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<S>' }}{% endif %}"
)
DROPS_THINK = PLAIN.replace("m.content", "m.content.split('\n')[-1]")
S, E, NL = 8, 9, 4


def play(source: str, history: History, sampled: list[tuple[int, ...]]) -> Trajectory:
    """Return an episode which opens with "he", answers "he" to every turn, and ends itself."""
    renderer = ChatRenderer(ToyTokenizer(), ChatTemplate(source), history=history)
    opening = [Message(role="user", content="he")]
    pending = renderer.first_prompt(opening)
    prompt = pending.ids
    rendered: list[RenderedTurn] = []
    turns: list[Turn] = []
    for index, ids in enumerate(sampled):
        trace = TokenTrace(
            ids=ids,
            behavior_logprobs=tuple(-0.25 * (index + 1) for _ in ids),
            versions=(VersionRun(version=index + 3, count=len(ids)),) if ids else (),
        )
        completion = Completion(text=renderer.decode(ids), tokens=trace)
        turns.append(
            Turn(
                index=index,
                parent=index - 1 if index else None,
                prefix_length=pending.prefix_length,
                prompt_ids=pending.ids,
                prompt_spans=pending.spans,
                completion=completion,
                observation="he",
                rewards={"part": 0.5},
            )
        )
        rendered.append(
            RenderedTurn(
                prompt_ids=prompt,
                sampled_ids=ids,
                completion=completion.text,
                observation=Message(role="user", content="he"),
            )
        )
        pending = renderer.next_prompt(opening, rendered)
        prompt = (prompt + ids)[: pending.prefix_length] + pending.ids
    return Trajectory(
        id="t", group_id="g", task_id="k", env_id="e", turns=tuple(turns), terminated=True
    )


def test_mask_covers_the_sampled_ids_and_their_end_b1() -> None:
    # he <E> <S> | llo he <E> | he <E> <S> | llo <E>: context, sampled, context, sampled.
    (row,) = to_samples(play(PLAIN, History.VERBATIM, [(2, 1, E), (2, E)]))
    assert row.ids == (1, E, S, 2, 1, E, 1, E, S, 2, E)
    assert [int(m) for m in row.loss_mask] == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1]
    assert sum(row.loss_mask) == 5
    assert row.turn_ids == (-1, -1, -1, 0, 0, 0, -1, -1, -1, 1, 1)
    assert row.versions == (-1, -1, -1, 3, 3, 3, -1, -1, -1, 4, 4)
    assert row.behavior_logprobs == (0, 0, 0, -0.25, -0.25, -0.25, 0, 0, 0, -0.5, -0.5)


def test_context_keeps_its_meaning() -> None:
    (row,) = to_samples(play(PLAIN, History.VERBATIM, [(2, E), (2, E)]))
    kinds = [ROLE_KINDS[role] for role in row.role_ids]
    observation, template, action = SpanKind.OBSERVATION, SpanKind.TEMPLATE, SpanKind.ACTION
    first = [observation, template, template, action, action]
    assert kinds == [*first, observation, template, template, action, action]


def test_end_that_equals_the_padding_is_trained_b3() -> None:
    # The toy's padding is <E>: a mask from values would lose the sampled end.
    assert ToyTokenizer().pad_id == E
    (row,) = to_samples(play(PLAIN, History.VERBATIM, [(1, 2, E)]))
    assert row.ids[3:] == (1, 2, E)
    assert row.loss_mask[3:] == (True, True, True)


def test_generation_prompt_is_not_trained_b7() -> None:
    # The generation prompt is <S> <think> and a break: none of it is in the mask.
    source = PLAIN.replace("{{ '<S>' }}", "{{ '<S>T\n' }}")
    (row,) = to_samples(play(source, History.VERBATIM, [(2, E)]))
    assert row.ids == (1, E, S, 256 + ord("T"), NL, 2, E)
    assert [int(m) for m in row.loss_mask] == [0, 0, 0, 0, 0, 1, 1]


def test_added_end_is_context_without_a_logprob_b9() -> None:
    # A stop string ended turn 1 after [1, 2]; the template's <E> follows as context.
    (row,) = to_samples(play(PLAIN, History.VERBATIM, [(1, 2), (2, E)]))
    assert row.ids == (1, E, S, 1, 2, E, 1, E, S, 2, E)
    assert [int(m) for m in row.loss_mask] == [0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1]
    assert row.behavior_logprobs is not None
    assert row.behavior_logprobs[5] == 0


def test_empty_turn_keeps_its_reward_and_trains_nothing_b8() -> None:
    trajectory = play(PLAIN, History.VERBATIM, [()])
    assert trajectory.turns[0].rewards == {"part": 0.5}
    (row,) = to_samples(trajectory)
    assert row.ids == (1, E, S)
    assert sum(row.loss_mask) == 0


def test_carried_reasoning_is_one_row_with_both_turns_a4() -> None:
    # 5 and 4 sampled ids in one row: mask sum 9.
    (row,) = to_samples(play(DROPS_THINK, History.VERBATIM, [(1, NL, 2, 1, E), (1, NL, 2, E)]))
    assert sum(row.loss_mask) == 9


def test_dropped_reasoning_gives_a_row_a_segment_a4() -> None:
    rows = to_samples(play(DROPS_THINK, History.TEMPLATE, [(1, NL, 2, 1, E), (1, NL, 2, E)]))
    assert [sum(row.loss_mask) for row in rows] == [5, 4]
    # The second turn was sampled after a history without the first turn's reasoning: he newline.
    assert rows[0].ids == (1, E, S, 1, NL, 2, 1, E)
    assert rows[1].ids == (1, E, S, 2, 1, E, 1, E, S, 1, NL, 2, E)
    assert [int(m) for m in rows[1].loss_mask] == [0] * 9 + [1] * 4
