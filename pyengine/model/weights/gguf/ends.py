"""The tokens that end an answer, as llama.cpp takes them from a GGUF file.

Files name one, often that which ended the texts of training, while turns end with another: those of
Qwen have ``<|endoftext|>`` there, and their chats end with ``<|im_end|>``. So tokens count by their
spelling, too.
"""

from collections.abc import Mapping
from typing import Any

NAMED = ("eos", "eot", "eom")
SPELLINGS = (
    "<EOT>", "[EOS]", "[EOT]", "_<EOT>", "<end_of_turn>", "<end_of_utterance>", "<turn|>",
    "<|call|>", "<|calls|>", "<|end|>", "<|end_of_text|>", "<|endoftext|>", "<|eom_id|>",
    "<|eot_id|>", "<|flush|>", "<|im_end|>", "<|return|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>",
)  # fmt: skip


def end_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    """The tokens that end an answer, those that the file names first."""
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    named = [metadata.get(f"tokenizer.ggml.{end}_token_id") for end in NAMED]
    spelled = {token: index for index, token in enumerate(tokens) if token in _SPELLINGS}
    if _ends_messages_alone(spelled):
        spelled.pop("<|end|>")
    found = dict.fromkeys(token for token in named if token is not None)
    return [*(found | dict.fromkeys(sorted(spelled.values())))]


_SPELLINGS = frozenset(SPELLINGS)


def _ends_messages_alone(spelled: Mapping[str, int]) -> bool:
    """Whether ``<|end|>`` ends a message of an answer, and not the answer (gpt-oss, Solar Open)."""
    return "<|end|>" in spelled and (
        {"<|return|>", "<|call|>"} <= spelled.keys() or {"<|calls|>", "<|flush|>"} <= spelled.keys()
    )
