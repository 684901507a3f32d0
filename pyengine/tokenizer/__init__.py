"""Text to token ids: Hugging Face's ``tokenizers`` around a model folder.

The detokenizer, in Rust, decodes what a model generates; :meth:`Tokenizer.decode` is for
prompts and tests.
"""

import asyncio
import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import tokenizers

from pyengine._core import Vocabulary
from pyengine.errors import ContextLengthError, InvalidRequestError, ModelLoadError
from pyengine.tokenizer.files import made_of_files
from pyengine.tokenizer.json_files import end_token_ids, read_json, token_text

__all__ = ["Tokenizer", "end_token_ids", "longest_prediction", "read_json", "token_text"]

T = TypeVar("T")

# Characters from which encoding leaves the event loop: below, a thread costs more than it frees.
OFF_LOOP_CHARACTERS = 20_000

# Searches of the vocabulary whose results are kept; see Tokenizer.containing().
KEPT_SEARCHES = 64

# Things made of the tokenizer that are kept; see Tokenizer.derived().
KEPT_DERIVED = 4

# More characters than an ordinary token has; see longest_prediction().
PREDICTED_CHARACTERS = 16

# The most bytes of text that a normalizer may fold into one byte. NFC composes: three Hangul jamo,
# nine bytes, become one syllable of three. Kinds that are not here may drop text altogether.
_FOLDS = {"NFC": 3, "Prepend": 1, "Replace": 1}
# Pre-tokenizers that split text and drop none of it.
_KEEPING = ("ByteLevel", "Digits", "Metaspace", "Split")


class Tokenizer:
    """The tokenizer of one model. Immutable; any thread may call it. Encoding releases the GIL.

    Attributes:
        vocab_size: Number of token ids, added tokens counted in.
        eos_token_ids: Tokens that end a generation, ascending: those of generation_config.json
            (config.json where it has none) and the tokenizer's own.
        special_tokens: The special tokens, by their spelling.
        added_tokens: These, and other tokens that are recognised before all others.
    """

    def __init__(
        self, inner: tokenizers.Tokenizer, text: str, eos_token_ids: Iterable[int] = ()
    ) -> None:
        """Wrap ``inner``, made from ``text``, the content of a tokenizer.json."""
        inner.no_padding()
        inner.no_truncation()
        self._inner = inner
        self._text = text
        self._containing: dict[str, tuple[int, ...]] = {}
        self._derived: dict[Hashable, Any] = {}
        spec = json.loads(text)
        self._bytes_per_token = _most_bytes_per_token(spec)
        added = [token for token in spec.get("added_tokens") or [] if token["content"]]
        self.added_tokens = frozenset(token["content"] for token in added)
        self.special_tokens = frozenset(token["content"] for token in added if token.get("special"))
        self.vocab_size: int = inner.get_vocab_size(with_added_tokens=True)
        self.eos_token_ids = tuple(sorted(set(eos_token_ids)))

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """The tokenizer of a model folder.

        Raises:
            ModelLoadError: Its files are missing or malformed.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            inner = made_of_files(folder)
            return cls(inner, inner.to_str(), _eos_token_ids(folder, inner))
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelLoadError(f"cannot read {path}: {error}") from error
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # tokenizers raises bare Exception, and panics
            raise ModelLoadError(f"{path} is no tokenizer: {error}") from error
        return cls(inner, text, _eos_token_ids(folder, inner))

    def derived(self, key: Hashable, make: Callable[[], T]) -> T:
        """The object that ``make`` makes of this tokenizer; the last few are kept by key."""
        if (made := self._derived.get(key)) is None:
            while len(self._derived) >= KEPT_DERIVED:
                self._derived.pop(next(iter(self._derived)))
            made = self._derived[key] = make()
        derived: T = made
        return derived

    @property
    def tokenizer_json(self) -> str:
        """The content of tokenizer.json, for the detokenizer."""
        return self._text

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of ``text``. Special tokens that are spelled out in it are recognised.

        Args:
            text: Any text.
            add_special_tokens: Add what the model expects around a text (such as its
                beginning-of-sequence token). Rendered chat templates bring their own.

        Raises:
            InvalidRequestError: ``text`` holds half of a surrogate pair.
        """
        try:
            # A batch of one: `encode` keeps the GIL, 65 ms for 28,000 tokens, a batch gives it up.
            (encoding,) = self._inner.encode_batch([text], add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequestError(
                f"the prompt is not valid Unicode: {error}", param="prompt"
            ) from None
        ids: list[int] = encoding.ids
        return ids

    async def encode_async(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """As :meth:`encode`; a long text is encoded on a thread, so that the loop goes on."""
        if len(text) < OFF_LOOP_CHARACTERS:
            return self.encode(text, add_special_tokens)
        return await asyncio.to_thread(self.encode, text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of ``token_ids``."""
        text: str = self._inner.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token's text; empty beyond the vocabulary.

        The first call reads the vocabulary, which takes tenths of a second for a large one; see
        :meth:`load_bytes`.
        """
        if token >= len(self._vocabulary):
            return b""
        return self._vocabulary.token_bytes(token)

    def containing(self, text: str) -> tuple[int, ...]:
        """The tokens whose text contains ``text``, ascending; those of the last few are kept."""
        if text not in self._containing:
            while len(self._containing) >= KEPT_SEARCHES:
                self._containing.pop(next(iter(self._containing)))
            self._containing[text] = tuple(self._vocabulary.containing(text))
        return self._containing[text]

    async def load_bytes(self) -> None:
        """Read on a thread what :meth:`token_bytes` needs."""
        if "_vocabulary" not in self.__dict__:
            await asyncio.to_thread(lambda: self._vocabulary)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        try:
            return Vocabulary.from_tokenizer_json(self._text)
        except ValueError as error:
            raise ModelLoadError(str(error)) from error

    def vocabulary(self) -> dict[str, int]:
        """The id of each token, by its spelling; made anew."""
        made: dict[str, int] = self._inner.get_vocab(with_added_tokens=True)
        return made

    def token_id(self, token: str) -> int | None:
        """The id of a token by its spelling in the vocabulary, or None."""
        found: int | None = self._inner.token_to_id(token)
        return found

    def token_ids(self, spellings: Iterable[str]) -> tuple[int, ...]:
        """The ids of those of ``spellings`` that are tokens."""
        found = (self.token_id(spelling) for spelling in spellings)
        return tuple(token for token in found if token is not None)

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the tokens of ``text``, without encoding it: O(length), microseconds.

        Bytes that the longest token covers; 0 for kinds of tokenizer that may drop text.
        """
        if self._bytes_per_token == 0:
            return 0
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        return -(-size // self._bytes_per_token)

    def check_length(self, text: str, max_context: int) -> None:
        """Refuse a text that cannot fit ``max_context`` tokens, before it is encoded.

        Raises:
            ContextLengthError: It has more tokens than that, however it is tokenized.
        """
        fewest = self.fewest_tokens(text)
        if fewest >= max_context:
            raise ContextLengthError(
                f"this model's maximum context length is {max_context} tokens; the prompt has at "
                f"least {fewest}",
                param="prompt",
            )


def longest_prediction(text: str, max_context: int) -> str:
    """The beginning of a prediction that an answer could reach; no answer reaches the rest."""
    return text[: max_context * PREDICTED_CHARACTERS]


def _most_bytes_per_token(spec: dict[str, Any]) -> int:
    """The most bytes of text that one token can stand for; 0 if there is no such bound."""
    model = spec["model"]
    pre_tokenizers = list(_parts(spec.get("pre_tokenizer"), "pretokenizers"))
    normalizers = list(_parts(spec.get("normalizer"), "normalizers"))
    byte_level = any(part["type"] == "ByteLevel" for part in pre_tokenizers)
    keeps_all = all(
        part["type"] in _KEEPING and part.get("behavior") != "Removed" for part in pre_tokenizers
    )
    added = spec.get("added_tokens") or []
    strips = any(token.get("lstrip") or token.get("rstrip") for token in added)
    if (
        model.get("type") != "BPE"
        or not (byte_level or model.get("byte_fallback"))
        or not keeps_all
        or strips
        or not all(_lengthens_at_most(part) for part in normalizers)
    ):
        return 0
    fold = 1
    for part in normalizers:
        fold *= _FOLDS[part["type"]]
    # A byte-level vocabulary spells every byte as one character.
    spell = len if byte_level else _bytes
    longest = max((spell(token) for token in model["vocab"]), default=1)
    longest = max([longest, *(_bytes(token["content"]) for token in added)])
    return longest * fold


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _parts(spec: dict[str, Any] | None, key: str) -> Iterable[dict[str, Any]]:
    """The parts of a (nested) Sequence, or the one there is."""
    if spec is None:
        return
    if spec["type"] != "Sequence":
        yield spec
        return
    for part in spec[key]:
        yield from _parts(part, key)


def _lengthens_at_most(part: dict[str, Any]) -> bool:
    """Whether a normalizer never folds more than ``_FOLDS`` says."""
    if part["type"] == "Replace":
        pattern = part["pattern"].get("String")
        return pattern is not None and _bytes(pattern) <= _bytes(part["content"])
    return part["type"] in _FOLDS


def _eos_token_ids(folder: Path, inner: tokenizers.Tokenizer) -> list[int]:
    found = end_token_ids(read_json(folder / "generation_config.json"))
    found = found or end_token_ids(read_json(folder / "config.json"))
    token = token_text(read_json(folder / "tokenizer_config.json").get("eos_token"))
    if token is not None and (token_id := inner.token_to_id(token)) is not None:
        found.append(token_id)
    return found
