import pytest

from mtlqwen import SamplingParams
from mtlqwen.errors import RequestError


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_tokens", [0, -1, 1.5, "3", True]),
        ("temperature", [-0.1, float("nan"), float("inf"), "1", None, True, 10**400]),
        ("top_k", [-1, 0.5, None, 1 << 31]),
        ("top_p", [-0.1, 1.1, float("nan"), None]),
        ("min_p", [-0.1, 1.1, "0.1"]),
        ("presence_penalty", [float("inf"), "x", 1e300]),
        ("frequency_penalty", [float("nan"), None]),
        ("repetition_penalty", [0, -1, 1e-300, float("inf")]),
        (
            "logit_bias",
            [
                {-1: 1},
                {"x": 1},
                {"٣": 1},
                {"3" * 5000: 1},
                {1: "x"},
                {1.5: 1},
                [1],
                None,
                dict.fromkeys(range(65537), 1),
            ],
        ),
        ("seed", [1.5, "1", 1 << 64, -(1 << 63) - 1, True]),
        ("stop", ["", ["a", ""], [1], 3, None, b"a", {"a": 1}, ["a"] * 65, "a" * 257]),
        ("stop_ids", [[-1], ["1"], 3, [1.5], b"a", {1: 1}]),
        ("ignore_eos", [1, None]),
        ("logprobs", [-1, 21, True, 1.0]),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, values):
    for value in values:
        with pytest.raises(RequestError, match=name) as error:
            SamplingParams(**{name: value})
        assert error.value.param == name


def test_a_long_value_is_told_in_short():
    with pytest.raises(RequestError) as error:
        SamplingParams(stop=["x" * 10_000, *[1] * 10_000])
    assert len(str(error.value)) < 300


def test_equivalent_forms_are_made_one():
    assert SamplingParams(stop="a").stop == ("a",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert len(SamplingParams(stop=["a" * 256] * 64).stop) == 64
    assert SamplingParams(stop_ids=[3]).stop_ids == (3,)
    assert SamplingParams(logit_bias={"100": 5, 7: -1}).logit_bias == {100: 5.0, 7: -1.0}
    assert SamplingParams(seed=-1).seed == -1
    assert SamplingParams(top_p=0).top_p == 0


def test_greedy_means_the_largest_raw_logit():
    assert SamplingParams().is_greedy
    assert not SamplingParams(temperature=0.1).is_greedy
    for change in (
        {"presence_penalty": 1.0},
        {"frequency_penalty": -1.0},
        {"repetition_penalty": 1.1},
        {"logit_bias": {1: 1}},
    ):
        assert not SamplingParams(**change).is_greedy
    assert not SamplingParams(logit_bias={1: 1}).has_penalty
