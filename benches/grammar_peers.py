"""Other packages that make masks from grammars, behind one face; each only if it can be imported.

They are given what makes the same language of texts: separators ``", "`` and ``": "``, one line,
and what JSON Schema says of additional properties.
"""

import ctypes
import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from time import thread_time
from typing import Any, Protocol

from tokenizers import Tokenizer

from benches.grammar_workloads import Workload

Seconds = float
# llguidance's JsonCompileOptions, a type that only those have who installed it.
SEPARATORS: Any = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


class AbsentError(Exception):
    """The package is not here."""


class Peer(Protocol):
    """A package with a tokenizer."""

    name: str

    def compile(self, work: Workload) -> Any:
        """A compiled grammar; raises whatever the package raises."""

    def masks(self, compiled: Any, ids: list[int]) -> Iterator[Seconds]:
        """Take the tokens; CPU time of the mask before each. Raises if one is not allowed."""


def expect(allowed: bool) -> None:
    if not allowed:
        raise RuntimeError("a token of the text was not allowed")


class Llguidance:
    """The package of llguidance, in Rust."""

    name = "llguidance"

    def __init__(self, tokenizer: Tokenizer, vocabulary: list[bytes], end: int) -> None:
        try:
            import llguidance
        except ImportError:
            raise AbsentError from None
        self.matcher = llguidance.LLMatcher
        wrapped = Wrapped(tokenizer, vocabulary, end)
        self.tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(wrapped), n_vocab=len(vocabulary)
        )
        self.mask = bytearray((len(vocabulary) + 31) // 32 * 4)

    def compile(self, work: Workload) -> Any:
        """By the package's function for its kind."""
        if work.kind == "json_schema":
            source = self.matcher.grammar_from_json_schema(
                json.dumps(work.spec), defaults=SEPARATORS
            )
        else:
            pattern = work.spec if work.kind == "regex" else "|".join(map(re.escape, work.spec))
            source = self.matcher.grammar_from_regex(pattern)
        matcher = self.matcher(self.tokenizer, source, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def masks(self, compiled: Any, ids: list[int]) -> Iterator[Seconds]:
        """Seconds of each mask."""
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(self.mask))
        compiled.reset()
        for token in ids:
            start = thread_time()
            compiled.unsafe_compute_mask_ptr(pointer, len(self.mask))
            yield thread_time() - start
            expect(self.mask[token // 8] >> token % 8 & 1 == 1)
            compiled.consume_token(token)


class Wrapped:
    """A tokenizer as llguidance's package wants it."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: list[bytes], end: int) -> None:
        self.tokenizer = tokenizer
        self.tokens = vocabulary
        self.eos_token_id = end
        self.bos_token_id = None
        self.special_token_ids = [end]

    def __call__(self, text: str | bytes) -> list[int]:
        """The ids of a text."""
        text = text.decode(errors="replace") if isinstance(text, bytes) else text
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


class Xgrammar:
    """The package of xgrammar, in C++."""

    name = "xgrammar"

    def __init__(self, tokenizer: Tokenizer, vocabulary: list[bytes], end: int) -> None:
        try:
            import xgrammar
        except ImportError:
            raise AbsentError from None
        self.package = xgrammar
        info = xgrammar.TokenizerInfo(vocabulary, vocab_size=len(vocabulary), stop_token_ids=[end])
        # One thread, as for the others; and no cache, for each compilation is to be seen.
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.mask = xgrammar.allocate_token_bitmask(1, len(vocabulary))

    def compile(self, work: Workload) -> Any:
        """By the package's function for its kind."""
        if work.kind == "json_schema":
            return self.compiler.compile_json_schema(
                json.dumps(work.spec),
                any_whitespace=False,
                separators=(", ", ": "),
                strict_mode=False,
            )
        if work.kind == "regex":
            return self.compiler.compile_regex(work.spec)
        choices = " | ".join(json.dumps(choice) for choice in work.spec)
        return self.compiler.compile_grammar(f"root ::= {choices}\n")

    def masks(self, compiled: Any, ids: list[int]) -> Iterator[Seconds]:
        """Seconds of each mask."""
        matcher = self.package.GrammarMatcher(compiled)
        for token in ids:
            start = thread_time()
            matcher.fill_next_token_bitmask(self.mask)
            yield thread_time() - start
            expect(matcher.accept_token(token))


class OutlinesCore:
    """The package of outlines-core, in Rust."""

    name = "outlines-core"

    def __init__(self, tokenizer: Tokenizer, vocabulary: list[bytes], end: int) -> None:
        try:
            import outlines_core
        except ImportError:
            raise AbsentError from None
        self.package = outlines_core
        ids: dict[bytes, list[int]] = {}
        for token, piece in enumerate(vocabulary):
            if piece and token != end:
                ids.setdefault(piece, []).append(token)
        self.vocabulary = outlines_core.Vocabulary(end, ids)
        self.mask = bytearray((len(vocabulary) + 31) // 32 * 4)

    def compile(self, work: Workload) -> Any:
        """By the package's function for its kind."""
        if work.kind == "json_schema":
            build = self.package.json_schema.build_regex_from_schema
            pattern = build(json.dumps(work.spec), "[ ]?")
        else:
            pattern = work.spec if work.kind == "regex" else "|".join(map(re.escape, work.spec))
        return self.package.Index(pattern, self.vocabulary)

    def masks(self, compiled: Any, ids: list[int]) -> Iterator[Seconds]:
        """Seconds of each mask."""
        guide = self.package.Guide(compiled)
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(self.mask))
        for token in ids:
            start = thread_time()
            guide.write_mask_into(pointer, len(self.mask) // 4, 4)
            yield thread_time() - start
            expect(self.mask[token // 8] >> token % 8 & 1 == 1)
            guide.advance(token, False)


PEERS = (Llguidance, Xgrammar, OutlinesCore)


def installed(name: str) -> str:
    """The version of a package."""
    return version(name)
