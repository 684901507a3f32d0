"""What a config.json means by the keys that it leaves out, and which of its keys mean nothing.

The table beside this file has both by ``model_type``, as transformers' configuration classes have
them; ``python -m tools.config_defaults`` writes it. Imports no torch.
"""

import json
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pyengine.errors import ModelLoadError

log = logging.getLogger("pyengine")

PATH = Path(__file__).with_suffix(".json")
ROTARY = ("rope_parameters", "rope_scaling")


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with the keys that it leaves out, and without those that its family ignores.

    A key that is there and null means something else than that it is not there where its family's
    configuration may be null; such a key stays.

    Args:
        config: The config.json of a language model, or of the text part of another.
    """
    entry = _table().get(str(config.get("model_type")))
    if entry is None:
        return dict(config)
    ignored = [key for key in entry["ignored"] if config.get(key) not in (None, False)]
    if ignored:
        log.warning(
            "config.json: %s is ignored, as models of 'model_type' %r have no such thing",
            ", ".join(map(repr, ignored)), config["model_type"],
        )  # fmt: skip
    defaults = dict(entry["defaults"])
    for names in entry["names"].items():
        if any(config.get(name) is not None for name in names):
            for name in names:
                defaults.pop(name, None)
    meant_null = {*entry["nullable"], *(config.keys() - defaults.keys())}
    own = {
        key: value
        for key, value in config.items()
        if key not in entry["ignored"] and (value is not None or key in meant_null)
    }
    if any(own.get(key) for key in ROTARY):
        defaults.pop("rope_parameters", None)
    else:
        own.pop("rope_parameters", None)
    return defaults | own


def text_kind(config: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults that a model which also sees or hears has for its text part: its
    ``model_type``, and what stands outside of it.
    """
    entry = _table().get(str(config.get("model_type")), {})
    return {"model_type": entry["text"], **entry["defaults"]} if "text" in entry else {}


CLASSIFIER = "ForSequenceClassification"
"""The end of the names of architectures whose head gives labels their scores."""


def architecture_of(config: Mapping[str, Any]) -> str:
    """The name of a model's architecture: what config.json says, or what its ``model_type`` means.

    Raises:
        ModelLoadError: Neither is there.
    """
    given = config.get("architectures")
    first = given[0] if isinstance(given, list) and given else given
    if isinstance(first, str) and first:
        return first
    kind = config.get("model_type")
    name = _table().get(str(kind), {}).get("architecture")
    if name is None:
        raise ModelLoadError(
            f"config.json has no 'architectures', and 'model_type' of {kind!r} names none"
        )
    return str(name)


@cache
def _table() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
    return table
