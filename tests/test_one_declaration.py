"""Every sampling parameter has its place in the declaration, over HTTP and on the command line."""

from typing import Any

import click
import numpy as np
import pytest

from pyengine import SamplingParams
from pyengine._core import sampling_row
from pyengine.cli import main
from pyengine.cli.options import spelled
from pyengine.cli.parameters import settings
from pyengine.http.openai.schema.chat import ChatRequest
from pyengine.http.openai.schema.completions import CompletionRequest
from pyengine.http.openai.schema.sampling import HTTP_NAMES, sampling_params
from pyengine.model.step_fields import SAMPLING_ROW
from pyengine.sampling import pack_sampling

DEFAULTS = SamplingParams()
ROW: dict[str, Any] = sampling_row()


def test_the_row_has_the_names_of_the_parameters() -> None:
    assert set(ROW["names"]) <= set(SamplingParams.__struct_fields__)


def test_every_number_that_the_kernels_may_need_is_in_the_row() -> None:
    """A parameter of another type, or of the end of an answer, has another way."""
    ends = {"max_tokens", "min_tokens", "logprobs"}
    numbers = {
        name
        for name in SamplingParams.__struct_fields__
        if type(getattr(DEFAULTS, name)) in (int, float)
    }
    assert numbers - ends == set(ROW["names"]) - {"seed"}


def test_a_row_has_what_the_parameters_say() -> None:
    packed = np.frombuffer(pack_sampling(DEFAULTS, seed=0), SAMPLING_ROW)[0]
    for name in set(ROW["names"]) - {"seed"}:
        assert packed[name] == getattr(DEFAULTS, name), name


@pytest.mark.parametrize("request_type", [ChatRequest, CompletionRequest])
@pytest.mark.parametrize("name", SamplingParams.__struct_fields__)
def test_every_parameter_has_a_field_of_the_request(name: str, request_type: Any) -> None:
    assert HTTP_NAMES.get(name, name) in request_type.__struct_fields__


@pytest.mark.parametrize("name", [name for name in ROW["names"] if name != "seed"])
def test_sampling_options_of_a_request_reach_its_row(name: str) -> None:
    value: Any = {"dry_base": 2.5}.get(name, 0.5)
    value = 1 if isinstance(getattr(DEFAULTS, name), int) else value
    request = CompletionRequest(model="m", prompt="Hello", **{name: value})
    assert getattr(sampling_params(request, None, None, DEFAULTS), name) == value


@pytest.mark.parametrize("command", ["complete", "chat"])
@pytest.mark.parametrize("name", settings(DEFAULTS))
def test_every_parameter_has_an_option_that_explains_it(name: str, command: str) -> None:
    options = {option.name: option for option in main.commands[command].params}
    option = options[name]
    assert isinstance(option, click.Option)
    assert spelled(name) in option.opts
    assert option.help
    assert "``" not in option.help
