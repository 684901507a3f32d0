"""Writes two files from ``EngineConfig``: ``docs/SETTINGS.md`` with flag, default and meaning of
every setting, and ``pyengine/settings/keywords.py`` with their types, for type checkers.

``python -m tools.docs.settings`` writes them; a test holds them to the code.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from pyengine.cli.options import ENGINE_OPTIONS, described, spelled
from pyengine.settings import choices
from pyengine.settings.config import EngineConfig
from pyengine.settings.modes import MODES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "SETTINGS.md"
KEYWORDS = ROOT / "pyengine" / "settings" / "keywords.py"
HEAD = """# Settings

<!-- Made by `python -m tools.docs.settings` of EngineConfig; a test holds it to the code. -->

Each setting is a field of [`EngineConfig`](reference/parameters.md) and a keyword of `AsyncEngine`
and `Engine`. Those with a flag are options of every command. The commands also read each from a
variable `PYENGINE_<NAME>`, which a flag overrides; the library reads the variables with
`EngineConfig.from_environment()`. Options of the endpoint alone, such as ports and keys, are in
`pyengine serve --help-all`.

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


KEYWORDS_TEXT = '''"""The settings of an engine as keywords, for type checkers.

``python -m tools.docs.settings`` writes this file. :class:`EngineConfig` declares the settings with
their meanings and defaults.
"""

from collections.abc import Sequence
from typing import TypedDict

from pyengine.logits_processors import Call, LogitsProcessor
from pyengine.settings.choices import (
{choices}
)
from pyengine.settings.modes import Mode


class EngineSettings(TypedDict, total=False):
    """The keywords of an engine beside its model."""

{fields}
'''
# What an engine takes beyond the values of the setting.
WIDER = {"logits_processors": "Sequence[str | LogitsProcessor | Call]"}


def keywords() -> str:
    """The file of the keywords."""
    (declared,) = ast.parse(inspect.getsource(EngineConfig)).body
    assert isinstance(declared, ast.ClassDef)
    types = {
        line.target.id: ast.unparse(line.annotation)
        for line in declared.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    types = {n: WIDER.get(n, kind) for n, kind in types.items() if n != "model"}
    words = set(re.findall(r"\w+", " ".join(types.values()))) - {"Mode"}
    names = sorted((w for w in words if hasattr(choices, w)), key=str)
    return KEYWORDS_TEXT.format(
        choices="\n".join(f"    {name}," for name in names),
        fields="\n".join(f"    {name}: {kind}" for name, kind in types.items()),
    )


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
    KEYWORDS.write_text(keywords(), encoding="utf-8")
