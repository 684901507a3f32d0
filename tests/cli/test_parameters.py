"""Sampling parameters as a person types them."""

import pytest

from pyengine import SamplingParams
from pyengine.cli.parameters import changed, settings
from pyengine.errors import InvalidRequestError

BEFORE = SamplingParams(seed=3, max_tokens=9)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("temperature=0.5", {"temperature": 0.5}),
        ("temperature=0 top_k=5;min_p=0.1", {"temperature": 0.0, "top_k": 5, "min_p": 0.1}),
        ("seed=none max_tokens=None", {"seed": None, "max_tokens": None}),
        ("ignore_eos=true", {"ignore_eos": True}),
        ("stop=Bye,'The end'", {"stop": ("Bye", "The end")}),
        ("""stop='["a,b", "\\n"]'""", {"stop": ("a,b", "\n")}),
        ("stop=", {"stop": ()}),
        ("stop_token_ids=5,6", {"stop_token_ids": (5, 6)}),
        (
            "presence_penalty=-1 bad_words=no,never",
            {"presence_penalty": -1.0, "bad_words": ("no", "never")},
        ),
        ("""logit_bias='{"5": -2, "7": 1.5}'""", {"logit_bias": {5: -2.0, 7: 1.5}}),
    ],
)
def test_typed_parameter_is_set_and_others_stay(text: str, after: dict[str, object]) -> None:
    fresh = changed(BEFORE, text)
    expected = {name: getattr(BEFORE, name) for name in BEFORE.__struct_fields__} | after
    assert {name: getattr(fresh, name) for name in fresh.__struct_fields__} == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("temperature=warm", "temperature=warm"),
        ("temperature=nan", "'temperature' must be"),
        ("temperature=none", "temperature=none"),
        ("top_k=1.5", "top_k=1.5"),
        ("seed=99999999999999999999", "seed"),
        ("stop=[1]", "stop=[1]"),
        ("stop='a", "cannot read"),
        ("depth=1", "unknown parameter 'depth'"),
        # The command line does not print them.
        ("logprobs=3", "unknown parameter 'logprobs'"),
        ("seed", "write seed=VALUE"),
    ],
)
def test_parameter_that_cannot_be_set_is_named(text: str, says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        changed(BEFORE, text)
    assert says in caught.value.message


def test_every_listed_parameter_can_be_set() -> None:
    assert set(settings(BEFORE)) == {*BEFORE.__struct_fields__} - {"logprobs"}
    for name in settings(BEFORE):
        with pytest.raises(InvalidRequestError, match=f"write {name}=VALUE"):
            changed(BEFORE, name)
