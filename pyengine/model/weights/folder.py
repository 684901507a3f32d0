"""Finds a model's files: the demo model, a folder, or a hub name. Imports no torch."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.progress import Progress
from pyengine.model.weights.gguf.folder import gguf_folder
from pyengine.model.weights.gguf.names import all_parts, is_gguf
from pyengine.model.weights.hub import HubName, hub_folder, is_hub_name
from pyengine.settings.config import EngineConfig

# Shapes of well-known models, without weights: for ``load_format="dummy"``.
SPECS_PATH = Path(__file__).parents[1] / "specs"
NAMED_SPECS = ("llama-3-8b", "llama-3-70b", "qwen3.5-0.8b", "qwen3.5-35b-a3b", "glm-4.7-flash")

# The draft model by this name is the demo model's small sibling.
DEMO_DRAFT = "demo"


def is_named_spec(model: str | None) -> bool:
    """Whether ``model`` names a model spec of the package, and no folder here."""
    return model in NAMED_SPECS and not Path(model).is_dir()


def config_folder(model: str | None) -> Path:
    """The folder with the config.json of ``model``."""
    if model is not None and is_named_spec(model):
        return SPECS_PATH / model
    return model_folder(model)


def model_folder(model: str | None, demo: str = "leave it out") -> Path:
    """The folder in Hugging Face format that ``model`` names; None is the demo model.

    A GGUF file becomes a folder. Another name that is not a local folder is taken from the hub (or
    its local cache, when offline). A named shape has no files but its config.json: it goes by the
    demo model's tokenizer and template.

    Args:
        model: As :class:`pyengine.EngineConfig` has it.
        demo: What to do for the demo model, as the error tells it.

    Raises:
        ModelLoadError: There is no such folder, and it cannot be downloaded.
    """
    if model is None or is_named_spec(model):
        from pyengine.demo import MODEL_PATH

        return MODEL_PATH
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        return folder
    if is_gguf(folder):
        return gguf_folder(folder)
    if folder.is_file():
        raise ModelLoadError(
            f"{model!r} is a file, and no .gguf: give the folder that it is in", param="model"
        )
    if not is_hub_name(model):
        raise ModelLoadError(
            f"there is no model folder {model!r}: give the path of one in Hugging Face format, or "
            f"a hub name as owner/name; for the demo model {demo}",
            param="model",
        )
    found = hub_folder(model)
    return gguf_folder(found) if is_gguf(found) else found


def is_here(config: EngineConfig) -> bool:
    """Whether the models are folders here: none is fetched, or written, before it is read."""
    named = (None, DEMO_DRAFT, *NAMED_SPECS)
    models = (config.model, config.draft_model)
    return all(model in named or Path(str(model)).expanduser().is_dir() for model in models)


def fetched(
    config: EngineConfig,
    progress: Progress | None = None,
    check: Callable[[EngineConfig], None] = lambda config: None,
) -> EngineConfig:
    """``config`` with the folders of models in the place of their hub names.

    An engine that is started again, or a process that joins it, so gets the same files, whatever
    the hub has by then.

    Args:
        config: An engine's configuration.
        progress: As of :func:`hub_folder`.
        check: Refuses what cannot be served, given the configuration with folders that may lack the
            weights still: it is called before a byte of them is fetched. Of a GGUF file, all that
            can be checked is in it.

    Raises:
        ModelLoadError: A model cannot be downloaded.
    """
    named = [each for each in ("model", "draft_model") if _is_on_hub(getattr(config, each))]
    if not named:
        return config  # the engine checks it, when it loads what is there
    served = served_names(config)
    small: dict[str, Any] = {
        each: str(_from_hub(each, config, small_files_alone=True))
        for each in named
        if HubName.read(getattr(config, each)).file is None
    }
    if len(small) == len(named):
        check(replace(config, served_name=served, **small))
    found: dict[str, Any] = {each: str(_from_hub(each, config, progress)) for each in named}
    whole = replace(config, served_name=served, **found)
    if len(small) != len(named):
        check(whole)
    return whole


def _is_on_hub(model: str | None) -> bool:
    return model is not None and is_hub_name(model) and not Path(model).exists()


def _from_hub(
    setting: str,
    config: EngineConfig,
    progress: Progress | None = None,
    *,
    small_files_alone: bool = False,
) -> Path:
    """The folder of a setting that is a hub name."""
    try:
        return hub_folder(
            getattr(config, setting),
            progress,
            weights=config.load_format != "dummy",
            small_files_alone=small_files_alone,
        )
    except ModelLoadError as error:
        raise (_of_draft(error) if setting == "draft_model" else error) from error


def draft_folder(draft_model: str) -> Path:
    """The folder of a draft model: as :func:`model_folder`, and ``demo`` is the demo model's.

    Raises:
        ModelLoadError: There is no such folder, and it cannot be downloaded.
    """
    if draft_model == DEMO_DRAFT:
        from pyengine.demo import DRAFT_PATH

        return DRAFT_PATH
    try:
        return model_folder(draft_model, f"give {DEMO_DRAFT!r}")
    except ModelLoadError as error:
        raise _of_draft(error) from error


def _of_draft(error: ModelLoadError) -> ModelLoadError:
    return ModelLoadError(f"the draft model: {error}", param="draft_model")


def served_name(model: str | None) -> str:
    """The name that ``model`` answers to unless it is given another."""
    if model is None:
        return "pyengine-demo"
    folder = Path(model).expanduser()
    if is_gguf(folder):
        return all_parts(folder)[0].stem.partition("-00001-of-")[0]
    if folder.is_dir():
        return folder.resolve().name
    return HubName.read(model).served_name if is_hub_name(model) else model


def served_names(config: EngineConfig) -> tuple[str, ...]:
    """The names that the model of ``config`` answers to, the first of which is its own."""
    return config.served_name or (served_name(config.model),)


def weight_file(config: Mapping[str, Any]) -> Path | None:
    """The GGUF file that a config.json names; None where the weights are in its folder."""
    given = config.get("quantization_config")
    if isinstance(given, Mapping) and given.get("quant_method") == "gguf":
        return Path(str(given.get("file")))
    return None


def weight_bytes(folder: Path, config: Mapping[str, Any]) -> int:
    """Bytes of the files with a model's weights."""
    file = weight_file(config)
    files = all_parts(file) if file is not None else folder.glob("*.safetensors")
    return sum(path.stat().st_size for path in files)
