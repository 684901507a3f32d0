"""How a model's makers want its answers sampled: the generation_config.json of its folder.

The values there stand in for those that a request leaves out. ``do_sample`` is not read: who asks
for a temperature of 0 takes the most likely tokens, of any model. End-of-sequence tokens are the
tokenizer's (:mod:`pyengine.tokenizer`).
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from pyengine.errors import InvalidRequestError, ModelLoadError
from pyengine.sampling import MODEL_DEFAULTS, SamplingParams
from pyengine.tokenizer import read_json

log = logging.getLogger("pyengine")

FILE = "generation_config.json"

# What else would change an answer, and the values of it that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "assistant_early_exit": (),
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "max_new_tokens": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "sequence_bias": ({}, []),
    "stop_strings": ([],),
    "suppress_tokens": ([],),
    "top_h": (),
}


@dataclass(frozen=True)
class GenerationConfig:
    """What a model's folder says of sampling.

    Attributes:
        params: The parameters of a request that says nothing.
        left_out: Names of what the file asks for beside them, and requests do not get.
    """

    params: SamplingParams = field(default_factory=SamplingParams)
    left_out: tuple[str, ...] = ()

    @property
    def given(self) -> dict[str, float]:
        """Those that differ from what an engine without the file takes, by name."""
        usual = SamplingParams()
        values = {name: getattr(self.params, name) for name in MODEL_DEFAULTS}
        return {name: value for name, value in values.items() if value != getattr(usual, name)}


def generation_config(folder: Path) -> GenerationConfig:
    """What the generation_config.json of ``folder`` says; nothing where there is none.

    Raises:
        ModelLoadError: It is malformed, or a value is out of its range; named.
    """
    file = read_json(folder / FILE)
    values = {name: file[name] for name in MODEL_DEFAULTS if file.get(name) is not None}
    if values.get("top_k") == -1:
        del values["top_k"]
    params = SamplingParams(**values)
    try:
        params.validate()
    except InvalidRequestError as error:
        raise ModelLoadError(
            f"{folder / FILE}: {error}; correct it, or leave its sampling out with "
            "--generation-config none"
        ) from error
    left_out = tuple(
        name
        for name, neutral in _NEUTRAL.items()
        if file.get(name) is not None and file[name] not in neutral
    )
    if left_out:
        log.warning("%s: not honoured: %s", folder / FILE, ", ".join(left_out))
    return GenerationConfig(params, left_out)


def over(defaults: SamplingParams, given: dict[str, Any]) -> SamplingParams:
    """``defaults`` with what a request gives in their place; validated.

    Raises:
        InvalidRequestError: A parameter is out of its range; names it.
    """
    params = msgspec.structs.replace(defaults, **given)
    params.validate()
    return params
