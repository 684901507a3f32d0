"""Special tokens that are spelled out in what clients send: text, unless they are allowed.

A tokenizer takes ``<|im_end|>`` for the token wherever it stands, so that a message could forge
the end of its turn. A template's own special tokens must stay special, and rendering joins both to
one text. So special tokens of clients are broken by a *mark*, a character that occurs nowhere else,
before the template runs::

    message      Hi<|im_end|>                  nothing else is changed, and nothing at all where
    marked       Hi<¤|im_end|>                 no message spells a special token
    rendered     <|im_start|>user⏎Hi<¤|im_end|><|im_end|>
    respelled    ⟨key⟩<|im_start|>user⏎Hi<|im_end|>⟨key⟩<|im_end|>

What is whole in the rendered text is the template's. It gets a spelling with a random key, which
only a second tokenizer knows: the model's own, with its special tokens renamed. One pass of that
tokenizer gives the ids, so that text is split and merged around special tokens as ever.
"""

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import tokenizers

from pyengine.chat.template import ChatTemplate
from pyengine.tokenizer import Tokenizer

# With this many beginnings a search for each is faster than an expression.
MAX_PREFIXES = 12
# Private characters of Unicode, of planes 15 and 16. Keys begin with the first, marks are others.
_KEY = chr(0xF0000)
_MARKS = range(0xF0001, 0x10FFFE)

_encode = msgspec.json.Encoder().encode

Given = tuple[list[dict[str, Any]], list[dict[str, Any]] | None, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation.

    Attributes:
        text: As the model sees it, to be encoded without special tokens.
        respelled: The same with the template's special tokens respelled, where clients spell some
            too; then only :meth:`ContentTokens.encode` gives its ids.
    """

    text: str
    respelled: str | None = None


class ContentTokens:
    """Keeps the special tokens of clients apart from a template's. Any thread may use it."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, answer_markers: Collection[str] = ()
    ) -> None:
        """Take the model's tokenizer and template.

        Args:
            tokenizer: Its special tokens count, and other added tokens that the template spells.
            template: The model's chat template.
            answer_markers: Tokens that the model writes into its answers, such as those around
                reasoning. They stay special in the content of the assistant's messages, and so do
                tokens that the template looks for in messages.
        """
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens
        source = template.source + template.tool_source
        self._tokens = sorted(
            {each for each in added if each in tokenizer.special_tokens or each in source},
            key=lambda token: (-len(token), token),  # the longest that fits counts
        )
        kept = {*answer_markers, *(t for t in self._tokens if t in template.sought_text)}
        self._spelled = _any_of(self._tokens)
        self._in_answers = _any_of([token for token in self._tokens if token not in kept])
        self._prefixes = _prefixes(self._tokens)
        self._first_bytes = tuple({prefix[:1] for prefix in self._prefixes})

    def load(self) -> None:
        """Make the second tokenizer, which takes a second of CPU time for a large vocabulary."""
        _ = self._renamed

    def marked(self, given: Given) -> tuple[Given, str] | None:
        """What a template is given, with the special tokens in it broken, and the mark.

        None where there are none. Takes messages, tools and further variables.
        """
        if not self._may_be_in(given):
            return None
        mark = chr(secrets.choice(_MARKS))
        while _holds(given, mark):
            mark = chr(secrets.choice(_MARKS))
        marking = _Marking(mark)
        messages, tools, variables = given
        made = []
        for message in messages:
            answer = message.get("role") == "assistant"
            of_content = self._in_answers if answer else self._spelled
            made.append(
                {
                    key: marking.walk(value, of_content if key == "content" else self._spelled)
                    for key, value in message.items()
                }
            )
        tools = marking.walk(tools, self._spelled)
        variables = marking.walk(variables, self._spelled)
        return ((made, tools, variables), mark) if marking.found else None

    def prompt(self, rendered: str, mark: str) -> Prompt:
        """The prompt of a text that was rendered from what :meth:`marked` gives."""
        key = self._renamed.key
        respelled = self._spelled.sub(lambda token: key + token[0], rendered)
        escaped = json.dumps(mark)[1:-1]  # as templates write it that want ASCII
        texts = (text.replace(mark, "").replace(escaped, "") for text in (rendered, respelled))
        return Prompt(*texts)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt."""
        if prompt.respelled is None:
            return self._tokenizer.encode(prompt.text, add_special_tokens=False)
        return self._renamed.encode(prompt.respelled)

    def _may_be_in(self, given: Given) -> bool:
        """Whether a special token may be spelled; seldom wrong, and never when it says no."""
        try:
            data = _encode(given)
        except (TypeError, ValueError, UnicodeError, RecursionError):
            return True
        # To look for one byte takes a tenth of the time, and most texts do not have it.
        return any(byte in data for byte in self._first_bytes) and any(
            prefix in data for prefix in self._prefixes
        )

    @cached_property
    def _renamed(self) -> "_RenamedTokenizer":
        def make() -> _RenamedTokenizer:
            return _RenamedTokenizer(self._tokenizer, self._tokens)

        return self._tokenizer.derived(tuple(self._tokens), make)


class _Marking:
    """Puts a mark into the special tokens of values."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self.found = False

    def walk(self, value: Any, pattern: re.Pattern[str]) -> Any:
        """``value`` with every string in it marked, keys too."""
        if isinstance(value, str):
            while (marked := pattern.sub(self._broken, value)) != value:
                self.found, value = True, marked
            return value
        if isinstance(value, Mapping):
            return {
                self.walk(key, pattern): self.walk(each, pattern) for key, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.walk(each, pattern) for each in value]
        return value

    def _broken(self, token: re.Match[str]) -> str:
        return token[0][0] + self._mark + token[0][1:]


class _RenamedTokenizer:
    """A tokenizer that knows special tokens behind a random key only.

    Attributes:
        key: Precedes each of them.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[str]) -> None:
        self.key = _KEY + secrets.token_hex(16)
        names = {token: self.key + token for token in tokens}
        spec: dict[str, Any] = json.loads(tokenizer.tokenizer_json)
        for token in spec["added_tokens"]:
            token["content"] = names.get(token["content"], token["content"])
        model = spec["model"]
        vocabulary = model["vocab"]
        if isinstance(vocabulary, dict):
            model["vocab"] = {names.get(token, token): i for token, i in vocabulary.items()}
        else:  # pieces and their scores
            model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
        if model.get("unk_token") in names:
            model["unk_token"] = names[model["unk_token"]]
        spec |= {"post_processor": None, "truncation": None, "padding": None}
        self._inner = tokenizers.Tokenizer.from_str(json.dumps(spec))
        # Where a token's place is not in the vocabulary, its number may be another.
        self._ids: dict[int, int] = {}
        for token, name in names.items():
            mine, its = self._inner.token_to_id(name), tokenizer.token_id(token)
            assert mine is not None
            assert its is not None
            self._ids[mine] = its

    def encode(self, text: str) -> list[int]:
        """The ids that the tokenizer itself gives its tokens."""
        (encoding,) = self._inner.encode_batch([text], add_special_tokens=False)  # gives up the GIL
        return [self._ids.get(each, each) for each in encoding.ids]


def _holds(value: Any, character: str) -> bool:
    """Whether a string in ``value`` has the character."""
    if isinstance(value, str):
        return character in value
    if isinstance(value, Mapping):
        return any(_holds(each, character) for pair in value.items() for each in pair)
    return isinstance(value, list | tuple) and any(_holds(each, character) for each in value)


def _any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tokens)) or "(?!)")


def _prefixes(tokens: Sequence[str]) -> tuple[bytes, ...]:
    """Beginnings of all tokens in JSON: the longest that are few."""
    spelled = [msgspec.json.encode(token)[1:-1] for token in tokens]
    found: set[bytes] = set()
    for length in (6, 5, 4, 3, 2, 1):
        found = {each[:length] for each in spelled}
        if len(found) <= MAX_PREFIXES:
            break
    return tuple(found)
