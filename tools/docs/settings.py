"""``docs/SETTINGS.md``: every setting with its flag, default and meaning, made of ``EngineConfig``.
``python -m tools.docs.settings`` writes it; a test holds the two together.
"""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from pyengine.cli.options import ENGINE_OPTIONS, described, spelled
from pyengine.settings.config import EngineConfig
from pyengine.settings.modes import MODES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "SETTINGS.md"
HEAD = """# Settings

<!-- Made by `python -m tools.docs.settings` of EngineConfig; a test holds it to the code. -->

Each setting is a field of [`EngineConfig`](reference/parameters.md) and a keyword of `AsyncEngine`
and `Engine`. Those with a flag are options of every command. The commands also read each from a
variable `PYENGINE_<NAME>`, which a flag overrides; the library reads the variables with
`EngineConfig.from_environment()`. Options of the endpoint alone, such as ports and keys, are in
`pyengine serve --help`.

| setting | flag | default | meaning |
|---|---|---|---|
"""
MODES_HEAD = """
## Modes

`pyengine serve` takes the mode `local` unless set otherwise, `run-batch` takes `server`, `chat` and
`complete` take `interactive`. On a GPU the KV cache gets what `gpu_memory_fraction` leaves for it.

| mode | sequences in a step | tokens in a step | KV cache on the CPU |
|---|---|---|---|
"""


def page() -> str:
    """The page."""
    modes = (
        f"| `{name}` | {m.max_sequences} | {m.max_tokens_per_step} | {m.kv_cache_mib} MiB |\n"
        for name, m in MODES.items()
    )
    return HEAD + "".join(_rows()) + MODES_HEAD + "".join(modes)


def _rows() -> Iterator[str]:
    meanings = described(EngineConfig)
    for field in fields(EngineConfig):
        if not field.name.startswith("_"):
            flag = "MODEL" if field.name == "model" else ""
            if field.name in ENGINE_OPTIONS:
                negated = field.default is True
                flag = f"`{spelled(f'no_{field.name}' if negated else field.name)}`"
            meaning = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", meanings[field.name])
            meaning = meaning.replace("``", "`").replace("|", "\\|")
            yield f"| `{field.name}` | {flag} | `{field.default}` | {meaning} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
