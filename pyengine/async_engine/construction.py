"""The configuration and the placement that the arguments of an engine name."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pyengine.errors import ConfigError
from pyengine.logits_processors import Call, LogitsProcessor
from pyengine.placement import Placement, PlacementName, placed
from pyengine.settings.config import EngineConfig


def constructed(
    model: str | Path | None,
    config: EngineConfig | None,
    placement: PlacementName | Placement,
    settings: Mapping[str, Any],
) -> tuple[EngineConfig, Placement]:
    """Returns the configuration of an engine, and its placement.

    Raises:
        ConfigError: A setting does not exist, is out of its range or is given twice; or the
            placement does not take objects as logits processors.
    """
    if config is not None and (model is not None or settings):
        raise ConfigError("give either a config, or a model and settings")
    objects: tuple[LogitsProcessor | Call, ...] = ()
    if config is None:
        given = tuple(settings.get("logits_processors", ()))
        objects = tuple(each for each in given if not isinstance(each, str))
        named = tuple(each for each in given if isinstance(each, str))
        config = _config(model, {**settings, "logits_processors": named})
    if isinstance(placement, str):
        return config, placed(placement, objects)
    if objects:
        raise ConfigError(
            "'logits_processors' has objects, which this placement does not take: name them "
            "'module:name'",
            param="logits_processors",
        )
    return config, placement


def _config(model: str | Path | None, settings: Mapping[str, Any]) -> EngineConfig:
    names = [field.name for field in fields(EngineConfig)]
    for name in settings:
        if name not in names:
            raise ConfigError(f"there is no setting '{name}'; there are: {', '.join(names)}")
    return EngineConfig(model=None if model is None else str(model), **settings)
