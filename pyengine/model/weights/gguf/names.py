"""Names of GGUF files: one, or several that llama.cpp's ``llama-gguf-split`` has made of one."""

import re
from pathlib import Path

SUFFIX = ".gguf"
PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def is_gguf(path: Path) -> bool:
    """Whether ``path`` is a file by a GGUF's name."""
    return path.suffix == SUFFIX and path.is_file()


def all_parts(path: Path) -> list[Path]:
    """The files of the model to which ``path`` belongs, by its name; some may not be there."""
    name = PART.fullmatch(path.name)
    if name is None:
        return [path]
    parts = range(1, int(name[3]) + 1)
    return [path.with_name(f"{name[1]}-{part:05}-of-{name[3]}{SUFFIX}") for part in parts]
