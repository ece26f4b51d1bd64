# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalOperand=false
"""Presets: what is read, what is refused, in which words."""

import pytest

from agentgym.errors import ConfigError
from agentgym.trainers.objective.preset import list_presets, load_preset
from agentgym.trainers.parts import registry
from agentgym.trainers.parts.registry import Need, Slot


def problems(name="grpo", overrides=None, **options):
    """The lines of the report, sorted."""
    with pytest.raises(ConfigError) as caught:
        load_preset(name, overrides, **options)
    return sorted(str(caught.value).split("\n"))


@pytest.mark.parametrize("name", list_presets())
def test_shipped_preset_is_complete(name):
    preset = load_preset(name, group_size=8)
    assert preset.name == name
    assert preset.source.authors
    assert preset.formula.strip()
    assert preset.bias.strip()
    for _, slot, config in preset.parts():
        found = registry.find(slot, config.part)
        assert set(config.parameters) == set(found.parameters)
        assert found.summary  # each part says what it returns


def test_values_are_those_of_the_design():
    preset = load_preset("grpo")
    op = preset.terms[0].ops[0].parameters
    assert (op["ddof"], op["eps"], op["floor"], op["singleton"]) == (1, 1e-6, 1e-3, "zero")
    assert preset.aggregation.part == "sequence_mean_token_mean"
    assert preset.regularizers == ()
    base = load_preset("turn_base")
    assert base.aggregation.part == "token_mean"
    assert base.terms == preset.terms
    assert load_preset("turn_grpo").terms[0].ops[1].parameters["keys"] == ("group", "turn")
    assert load_preset("a2tgpo").terms[0].weight == 0.3


def test_overrides_reach_every_depth():
    changes = {
        "gate.clip_high": "0.3",
        "terms.gain.weight": 0.5,
        "terms.1.ops.normalise.eps": 1e-4,
        "bounds.width": 0.2,
    }
    preset = load_preset("a2tgpo", changes)
    assert preset.gate.parameters == {"clip_low": 0.2, "clip_high": 0.3}
    assert preset.terms[0].weight == 0.5
    assert preset.terms[1].ops[0].parameters["eps"] == 1e-4
    assert preset.terms[0].ops[0].parameters["eps"] == 1e-6
    assert preset.bounds.parameters["width"] == 0.2
    # The next reader gets the file's own values.
    assert load_preset("a2tgpo").gate.parameters["clip_high"] == 0.2


def test_override_of_a_part_drops_the_parameters_of_the_old_one():
    changes = {"gate.cap": 3, "gate.part": "dual_clip", "gate.clip_low": 0.1, "gate.clip_high": 0.2}
    assert load_preset("grpo", changes).gate.parameters == {
        "clip_low": 0.1,
        "clip_high": 0.2,
        "cap": 3.0,
    }
    assert load_preset("grpo", {"aggregation": "token_mean"}).aggregation.part == "token_mean"
    swapped = load_preset("dr_grpo", {"aggregation": "token_mean"})
    assert swapped.aggregation.parameters == {}
    lists = load_preset(
        "grpo", {"terms.outcome.ops.0.keys": ["group", "turn"], "rewards.0.place": "last_turn"}
    )
    assert lists.terms[0].ops[0].parameters["keys"] == ("group", "turn")


def test_everything_wrong_is_reported_together():
    changes = {
        "gate.clip_hihg": 0.3,
        "rewads": 1,
        "aggregation": "tokn_mean",
        "terms.outcome.ops.0.ddof": "x",
        "terms.nothing.weight": 1,
        "gate.clip_low": "wide",
    }
    assert problems("grpo", changes) == [
        (
            "preset 'grpo': aggregation: unknown aggregation part 'tokn_mean' "
            "(did you mean 'token_mean'?)"
        ),
        (
            "preset 'grpo': gate (clip): key 'clip_low': Input should be a valid number, unable to "
            "parse string as a number (got 'wide')"
        ),
        "preset 'grpo': gate (clip): unknown key 'clip_hihg' (did you mean 'clip_high'?)",
        (
            "preset 'grpo': override 'terms.nothing.weight': nothing named 'nothing' in terms "
            "(known: outcome)"
        ),
        (
            "preset 'grpo': terms.outcome.ops.0 (normalise): key 'ddof': Input should be a valid "
            "integer, unable to parse string as an integer (got 'x')"
        ),
        "preset 'grpo': unknown key 'rewads' (did you mean 'rewards'?)",
    ]


@pytest.mark.parametrize(
    ("name", "changes", "options", "message"),
    [
        (
            "grop",
            {},
            {},
            (
                "unknown preset 'grop' (did you mean 'grpo'?); "
                "`agentgym presets list` shows all of them"
            ),
        ),
        ("nowhere/x.yaml", {}, {}, "preset file 'nowhere/x.yaml' does not exist"),
        (
            "reinforce",
            {"bounds": {"part": "turn_adaptive", "term": "outcome", "width": 0.3}},
            {},
            (
                "preset 'reinforce': bounds 'turn_adaptive' sets clip widths, which gate 'score' "
                "has not"
            ),
        ),
        (
            "grpo",
            {},
            {"group_size": 1},
            (
                "preset 'grpo': a group baseline needs 2 or more trajectories of a task (got group "
                "size 1); raise the group size or take a preset without one: 'reinforce'"
            ),
        ),
        (
            "grpo",
            {"terms": []},
            {},
            "preset 'grpo': an advantage is needed: give 'terms' or a 'critic' (got neither)",
        ),
        (
            "grpo",
            {"combine": None},
            {},
            "preset 'grpo': 'terms' need a 'combine' and a 'spread' part",
        ),
        (
            "a2tgpo",
            {"combine.accumulate": "gian"},
            {},
            "preset 'a2tgpo': combine.accumulate: unknown term 'gian' (did you mean 'gain'?)",
        ),
        (
            "a2tgpo",
            {"terms.gain.reward": "gians"},
            {},
            "preset 'a2tgpo': terms.gain: unknown reward 'gians' (did you mean 'gain'?)",
        ),
        (
            "a2tgpo",
            {"probes": []},
            {},
            "preset 'a2tgpo': a belief reward needs a probe: give 'probes' (got none)",
        ),
        (
            "a2tgpo",
            {
                "terms.gain.name": "outcome",
                "combine.accumulate": "outcome",
                "bounds.term": "outcome",
            },
            {},
            "preset 'a2tgpo': two terms are named 'outcome'",
        ),
        (
            "grpo",
            {"status": "great"},
            {},
            ("preset 'grpo': status: Input should be 'faithful' or 'inspired_by' (got 'great')"),
        ),
    ],
)
def test_contradiction_is_one_line(name, changes, options, message):
    assert problems(name, changes, **options) == [message]


def test_group_of_one_is_fine_without_a_group_baseline():
    assert load_preset("reinforce", group_size=1).name == "reinforce"


def test_needs_are_the_union_over_parts():
    assert load_preset("reinforce").needs == {Need.PROXIMAL}
    assert load_preset("a2tgpo").needs == {
        Need.PROXIMAL,
        Need.GROUP,
        Need.BELIEF,
        Need.CLIP_WIDTHS,
    }
    assert load_preset("grpo", {"anchor": "behavior"}).needs == {Need.GROUP}
    assert load_preset("igpo").needs == {Need.PROXIMAL, Need.GROUP, Need.BELIEF, Need.REFERENCE}
    assert load_preset("ppo").needs == {Need.PROXIMAL, Need.VALUES}
    hooked = {Need.PROXIMAL, Need.VALUES, Need.CLIP_WIDTHS}
    assert load_preset("st_ppo").needs == hooked | {Need.GRADIENT_NORM}
    assert load_preset("st_ppo", {"hooks.0.measure": "absolute"}).needs == hooked


@pytest.mark.parametrize(
    ("anchor", "need"),
    [
        ("reference", {Need.REFERENCE}),
        ("proximal", {Need.PROXIMAL}),
        ("teacher", {Need.TEACHER}),
        ("behavior", set()),
    ],
)
def test_kl_needs_the_policy_it_names_and_the_sampler_is_always_there(anchor, need):
    part = {"part": "kl", "anchor": anchor, "estimator": "k2", "log_bound": 20, "coefficient": 1}
    preset = load_preset("grpo", {"anchor": "behavior", "regularizers": [part]})
    assert preset.needs == {Need.GROUP} | need


def test_proximal_pass_is_skipped_only_where_nothing_else_reads_it():
    assert load_preset("grpo").can_skip_proximal
    assert load_preset("ppo").can_skip_proximal
    assert not load_preset("grpo", {"anchor": "behavior"}).can_skip_proximal
    band = {"part": "truncated", "level": "turn", "cap": 2}
    assert not load_preset("grpo", {"correction": band}).can_skip_proximal
    sieve = {"part": "mismatch", "low": 0.9, "high": 1.1, "veto": 0, "statistics": "include"}
    assert not load_preset("grpo", {"filters": [sieve]}).can_skip_proximal


def test_group_baselines_alone_need_a_group():
    free = {"terms.0.ops.0.centre": "none"}
    assert load_preset("dr_grpo", free, group_size=1).needs == {Need.PROXIMAL}
    whole = {"terms.0.ops.0.keys": ["batch"]}
    assert load_preset("dr_grpo", whole, group_size=1).needs == {Need.PROXIMAL}
    assert problems("ppo", {"critic.reward": "outcomes"}) == [
        "preset 'ppo': critic: unknown reward 'outcomes' (did you mean 'outcome'?)"
    ]
    both = {"terms": [{"name": "a", "reward": "outcome"}]}
    assert problems("ppo", both) == [
        "preset 'ppo': 'critic' stands instead of 'terms': give one of the two (got both)"
    ]


def test_critic_refuses_one_number_a_trajectory():
    """It would land on the first turn: A = [1, 0, 0] where [.9025, .95, 1] is right."""
    line = (
        "preset 'ppo': critic: reward {} is one number a trajectory, and a critic places one a "
        "turn (part 'outcome' gives it with place 'last_turn'; 'terms' take both)"
    )
    assert problems("ppo", {"rewards.outcome.place": "trajectory"}) == [line.format("'outcome'")]
    long = {"name": "long", "part": "soft_overlong", "max_tokens": 9, "buffer": 3}
    last = {"name": "outcome", "part": "outcome", "place": "last_turn"}
    both = {"rewards": [last, long], "critic.reward": ["outcome", "long"]}
    assert problems("ppo", both) == [line.format("'long'")]
    # Unread by the critic, it may stay.
    assert load_preset("ppo", {"rewards": [last, long]}).critic.reward == {"outcome": 1.0}


def test_preset_file_extends_a_shipped_one_or_a_neighbour(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "extends: grpo\nname: mine\ngate: {clip_high: 0.28}\naggregation: token_mean\n"
    )
    (tmp_path / "more.yaml").write_text("extends: mine.yaml\nname: more\ngate: {clip_low: 0.1}\n")
    preset = load_preset(str(tmp_path / "more.yaml"))
    assert preset.gate.parameters == {"clip_low": 0.1, "clip_high": 0.28}
    assert preset.aggregation.part == "token_mean"
    assert preset.notes == ()  # notes are about the file that has them


def test_source_is_not_mixed_with_the_source_of_what_it_extends(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "extends: grpo\nname: mine\nsource: {authors: Someone, year: 2031}\n"
    )
    # grpo's arXiv id would be wrong beside these authors.
    assert str(load_preset(str(tmp_path / "mine.yaml")).source) == "Someone 2031"
    assert load_preset("reinforce").source.arxiv == ""
    assert load_preset("trloo").source.arxiv == "2602.05885"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "malformed YAML"),
        ("- 1", "must hold `key: value` lines (got [1])"),
        ("extends: me.yaml\nname: me", "extends itself"),
        ("name: me", "key 'source' is missing"),
    ],
)
def test_unusable_file_is_said_in_one_line(tmp_path, text, message):
    (tmp_path / "me.yaml").write_text(text)
    assert any(message in line for line in problems(str(tmp_path / "me.yaml")))


def test_part_names_are_taken_once_and_have_no_defaults():
    with pytest.raises(ValueError, match="part 'clip' of slot 'gate' is registered already"):
        registry.part("gate", name="clip")(lambda: None)

    def with_default(x: float, *, y: float = 1.0) -> float:
        return x * y

    with pytest.raises(ValueError, match="parameter 'y' of part 'with_default' has a default"):
        registry.part("gate")(with_default)
    with pytest.raises(LookupError, match=r"unknown ratio part 'turn_maen' \(did you mean"):
        registry.find(Slot.RATIO, "turn_maen")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("grpo", {"gate.clip_high": -1}, "'clip_high': Input should be greater than 0 (got -1)"),
        ("grpo", {"gate.clip_low": 7}, "'clip_low': Input should be less than or equal to 1 (got"),
        ("grpo", {"gate.clip_low": float("nan")}, "'clip_low': Input should be"),
        (
            "grpo",
            {"correction": {"part": "truncated", "level": "token", "cap": -2}},
            "'cap': Input should be greater than 0 (got -2)",
        ),
        (
            "grpo",
            {"correction": {"part": "masked", "level": "token", "low": 2, "high": 1.5}},
            "correction (masked): key 'low' must be below 'high', 1.5 (got 2.0)",
        ),
        (
            "grpo",
            {
                "filters": [
                    {
                        "part": "mismatch",
                        "low": 3,
                        "high": 2,
                        "veto": 0,
                        "statistics": "include",
                    }
                ]
            },
            "filters.0 (mismatch): key 'low' must be below 'high', 2.0 (got 3.0)",
        ),
        ("grpo", {"ratio.log_bound": 0}, "'log_bound': Input should be greater than 0 (got 0)"),
        ("grpo", {"terms.outcome.ops.0.ddof": 2}, "'ddof': Input should be less than or equal"),
        ("dr_grpo", {"aggregation.max_tokens": 0}, "'max_tokens': Input should be greater than 0"),
        ("a2tgpo", {"bounds.width": 1}, "'width': Input should be less than 1 (got 1)"),
        ("a2tgpo", {"probes.0.template": "so"}, "'template' must contain '{answer}' once (got"),
        ("a2tgpo", {"combine.discount": 1.5}, "'discount': Input should be less than or equal"),
        ("ppo", {"critic.discount": -0.5}, "'discount': Input should be greater than or equal"),
        ("ppo", {"critic.value_width": 0}, "critic.value_width: Input should be greater than 0"),
        (
            "grpo",
            {
                "rewards": [
                    {"part": "soft_overlong", "name": "outcome", "max_tokens": 5, "buffer": 6}
                ]
            },
            "key 'buffer' must be at most 'max_tokens', 5 (got 6)",
        ),
        (
            "grpo",
            {"terms.outcome.ops": [{"part": "to_go", "discount": 0.5}]},
            "terms.outcome: 'to_go' needs one number a turn (got one a trajectory)",
        ),
        (
            "grpo",
            {"terms.outcome.ops.0.keys": ["group", "turn"]},
            "terms.outcome: keys 'turn' of 'normalise' need one number a turn (got one a",
        ),
        (
            "grpo",
            {"combine": {"part": "cumsum_sqrt", "accumulate": "outcome", "discount": 0.5}},
            "combine.accumulate: term 'outcome' must be one number a turn (got one a trajectory)",
        ),
        (
            "igpo",
            {"rewards.outcome.place": "trajectory", "terms.0.reward": ["outcome", "gain"]},
            "rewards of turns and of trajectories cannot be added (got 'outcome', 'gain')",
        ),
    ],
)
def test_value_that_the_first_update_would_refuse_is_refused_when_loaded(name, changes, message):
    (line,) = problems(name, changes)
    assert message in line
