"""Checks a model by all its files but the weights, which may still have to be fetched."""

from pyengine.chat.template import ChatTemplate
from pyengine.errors import ModelLoadError
from pyengine.model.architectures import find_architecture
from pyengine.model.architectures.decoder import Family
from pyengine.model.spec import describe
from pyengine.model.weights.folder import model_folder, weight_file
from pyengine.model.weights.quantization.selection import find_scheme
from pyengine.settings.config import EngineConfig
from pyengine.tokenizer import Tokenizer


def check_model(config: EngineConfig) -> None:
    """Refuse a model that cannot be served, by its config.json, tokenizer and chat template.

    Args:
        config: Names folders, or files; nothing is downloaded.

    Raises:
        ModelLoadError: Says what is missing or not supported.
        ConfigError: A setting does not fit the model.
    """
    spec = describe(config)
    for each in (spec, spec.draft):
        if each is None or each.dummy or not config.device_spec.computes:
            continue
        folder, build = each.info.folder, find_architecture(each.info.architecture)
        if isinstance(build, Family):
            build.check(each.info, each.config)
        if weight_file(each.config) is not None:
            continue
        if find_scheme(each.config) is None and (folder / "hf_quant_config.json").is_file():
            raise ModelLoadError(
                f"weights quantized by ModelOpt are not supported: {folder} has "
                "hf_quant_config.json",
                param="model",
            )
    folder = model_folder(config.model)
    Tokenizer.from_folder(folder)
    ChatTemplate.from_folder(folder)
