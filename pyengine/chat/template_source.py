"""The text of a model's chat template, as its folder has it; nothing is compiled here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pyengine.errors import ModelLoadError
from pyengine.tokenizer import read_json, token_text

ADDITIONAL = "additional_chat_templates"
"""The folder where transformers writes templates but the default one."""


@dataclass(frozen=True)
class TemplateSource:
    """A chat template in jinja.

    Attributes:
        text: The template.
        text_with_tools: Another one for requests with tools, where the model has it.
        special_tokens: Variables such as ``bos_token`` that templates may use.
    """

    text: str
    text_with_tools: str | None
    special_tokens: dict[str, str]

    @classmethod
    def read(cls, folder: str | Path) -> Self | None:
        """The chat template of a model folder, or None if it has none.

        Looked for in chat_template.jinja, tokenizer_config.json (one, or several by name) and
        chat_template.json, in this order. Templates in additional_chat_templates/ are of the names
        of their files.

        Raises:
            ModelLoadError: A file is malformed.
        """
        folder = Path(folder)
        found: Any = None
        if (path := folder / "chat_template.jinja").is_file():
            found = _text(path)
        found = found or read_json(folder / "tokenizer_config.json").get("chat_template")
        found = found or read_json(folder / "chat_template.json").get("chat_template")
        named = {"default": found} if isinstance(found, str) and found else {}
        if found and not named:
            try:
                named = {entry["name"]: entry["template"] for entry in found}
            except (TypeError, KeyError) as error:
                raise ModelLoadError(
                    f"{folder}: 'chat_template' must be a text, or a list of objects with 'name' "
                    "and 'template'"
                ) from error
        for path in sorted((folder / ADDITIONAL).glob("*.jinja")):
            named.setdefault(path.stem, _text(path))
        if not named:
            return None
        if "default" not in named:
            raise ModelLoadError(f"{folder} has chat templates {sorted(named)} but no default one")
        return cls(named["default"], named.get("tool_use"), special_tokens_of(folder))

    @property
    def for_tools(self) -> str:
        """The template of requests with tools."""
        return self.text if self.text_with_tools is None else self.text_with_tools


def special_tokens_of(folder: str | Path) -> dict[str, str]:
    """The special tokens that the templates of a model folder may use, such as ``bos_token``.

    Those of tokenizer_config.json count before those of special_tokens_map.json.

    Raises:
        ModelLoadError: A file is malformed.
    """
    names = ("special_tokens_map.json", "tokenizer_config.json")
    return {
        key: text
        for name in names
        for key, value in read_json(Path(folder) / name).items()
        if key.endswith("_token") and (text := token_text(value)) is not None
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error
