"""``suffix`` of a text completion: the model fills the gap before it, where its tokenizer has marks
for that.

::

    PREFIX prompt SUFFIX suffix MIDDLE ──► the text between     Qwen Coder, StarCoder, CodeLlama
    BEGIN  prompt HOLE   suffix END    ──► the same             DeepSeek Coder
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http.openai.schema.completions import CompletionRequest
from pyengine.tokenizer import Tokenizer

# Before the prompt, between it and the suffix, and behind that; by the families above.
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
# What ends the text between, beside the end of the model's texts.
_ENDS = (
    "▁<EOT>", "<|fim_pad|>", "<fim_pad>", "<|repo_name|>", "<|file_sep|>", "<file_sep>",
    "<|endoftext|>",
)  # fmt: skip


@dataclass(frozen=True)
class Gap:
    """The tokens around a prompt that has a suffix.

    Attributes:
        before: Before the prompt.
        after: Behind it: the suffix among the marks.
        ends: The tokens that end the text between.
    """

    before: Sequence[int]
    after: Sequence[int]
    ends: tuple[int, ...]

    def around(self, prompt: Sequence[int]) -> list[int]:
        """The prompt of the text between."""
        return [*self.before, *prompt, *self.after]


async def gap(request: CompletionRequest, tokenizer: Tokenizer) -> Gap | None:
    """The gap that a request wants to be filled; None: it has no suffix.

    Raises:
        InvalidRequestError: The model has no marks for it, or another field does not go with it.
    """
    if not request.suffix:
        return None
    if request.echo:
        raise InvalidRequestError("'suffix' does not go with 'echo'.", param="suffix")
    found = next(
        (ids for marks in _MARKS if len(ids := tokenizer.token_ids(marks)) == len(marks)), None
    )
    if found is None:
        raise UnsupportedParameterError(
            "'suffix' is not supported by this model: its tokenizer has no marks of a gap.",
            param="suffix",
        )
    start: list[int] = []
    if request.add_special_tokens is not False:
        start = await tokenizer.encode_async("")
    suffix = await tokenizer.encode_async(request.suffix, add_special_tokens=False)
    prefix_mark, suffix_mark, middle_mark = found
    after = [suffix_mark, *suffix, middle_mark]
    return Gap([*start, prefix_mark], after, tokenizer.token_ids(_ENDS))
