"""What a folder is that is no model, or not a whole one, by what is in it. Imports no torch."""

import re
from pathlib import Path

from pyengine.errors import ModelLoadError
from pyengine.tokenizer import read_json

LFS = b"version https://git-lfs.github.com/spec/"
LARGE = (".safetensors", ".gguf", ".bin", ".json", ".model", ".tiktoken")
"""Files that repositories keep in Git LFS."""
CACHED = re.compile(r"models--(.+?)--(.+)")


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be a model, or has files that are not really there.

    Raises:
        ModelLoadError: Says what the folder is, and what to give in its place.
    """
    files = sorted(folder.iterdir())
    if not files:
        raise ModelLoadError(f"{folder} is empty", param="model")
    dangling = [file.name for file in files if file.is_symlink() and not file.exists()]
    if dangling:
        raise ModelLoadError(
            f"{folder} has links to files that are not there: {_some(dangling)}. Files of the "
            "hub's cache were removed, or the folder was copied without them: download it again",
            param="model",
        )
    pointers = [file.name for file in files if _is_pointer(file)]
    if pointers:
        raise ModelLoadError(
            f"{folder} has pointers of Git LFS in the place of files: {_some(pointers)}. "
            "`git lfs pull` in it fetches them",
            param="model",
        )
    if not (folder / "config.json").is_file():
        raise ModelLoadError(f"{folder} {_without_config(folder, files)}", param="model")


def _without_config(folder: Path, files: list[Path]) -> str:
    """What a folder without a config.json is, as the end of a sentence."""
    names = [file.name for file in files]
    if "adapter_config.json" in names:
        base = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
        return (
            f"is an adapter (LoRA) and no model: give the model that it adapts, {base!r}, and the "
            "folder as one of 'adapter' (name=folder)"
        )
    cached = CACHED.fullmatch(folder.name)
    if cached and "snapshots" in names:
        return f"is of the hub's cache: give the name, {cached[1]}/{cached[2]}, in its place"
    if inner := [file for file in files if (file / "config.json").is_file()]:
        with_weights = [each for each in inner if any(each.glob("*.safetensors"))]
        return f"has no config.json, but {(with_weights or inner)[0]} has: give that folder"
    if ggufs := [file for file in files if file.suffix == ".gguf"]:
        return f"has no config.json but GGUF files: give one of them, such as {ggufs[0]}"
    if "params.json" in names:
        return "is in Mistral's own format: give a folder in Hugging Face format, with config.json"
    return f"has no config.json, but {_some(names)}: is it a model in Hugging Face format?"


def _is_pointer(file: Path) -> bool:
    if file.suffix not in LARGE or not file.is_file() or file.stat().st_size > 1024:
        return False
    return file.read_bytes().startswith(LFS)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
