"""The text of a model's chat template, as its folder has it; nothing is compiled here."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pyengine.errors import ModelLoadError
from pyengine.tokenizer import read_json, token_text


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
        chat_template.json, in this order.

        Raises:
            ModelLoadError: A file is malformed.
        """
        folder = Path(folder)
        config = read_json(folder / "tokenizer_config.json")
        found: Any = None
        if (path := folder / "chat_template.jinja").is_file():
            found = path.read_text(encoding="utf-8")
        found = found or config.get("chat_template")
        found = found or read_json(folder / "chat_template.json").get("chat_template")
        if not found:
            return None
        tokens = special_tokens(config)
        if isinstance(found, str):
            return cls(found, None, tokens)
        named = {entry["name"]: entry["template"] for entry in found}
        if "default" not in named:
            raise ModelLoadError(f"{folder} has chat templates {sorted(named)} but no default one")
        return cls(named["default"], named.get("tool_use"), tokens)

    @property
    def for_tools(self) -> str:
        """The template of requests with tools."""
        return self.text if self.text_with_tools is None else self.text_with_tools


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that templates may use, such as ``bos_token``, of a
    tokenizer_config.json.
    """
    return {
        key: text
        for key, value in config.items()
        if key.endswith("_token") and (text := token_text(value)) is not None
    }
