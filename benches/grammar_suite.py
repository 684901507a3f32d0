"""The JSON-Schema-Test-Suite through this engine and through other packages.

For what a package accepts its tokenizer is beside the point, so that the others get one of single
bytes, with which they compile fastest.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers

from benches.grammar_peers import SEPARATORS
from pyengine._core import GrammarContext, compile_grammar
from tests.grammar.schema_suite import Accepts, Outcome, RefusedError, read, run

BYTES = [bytes([byte]) for byte in range(256)] + [b"</s>"]
END = 256


def engine(context: GrammarContext, source: str, end: int) -> Callable[[Any], Accepts]:
    """This engine, with tokens as its tokenizer makes them."""
    tokenizer = Tokenizer.from_str(source)
    # The text is tested as it is written: a normalizer would compose characters first.
    tokenizer.normalizer = normalizers.Sequence([])

    def compile_schema(schema: Any) -> Accepts:
        description = {"kind": "json_schema", "schema": schema}
        try:
            grammar = compile_grammar(context, json.dumps(description).encode())
        except ValueError as error:
            raise RefusedError(str(error)) from None

        def accepts(text: str) -> bool:
            state = grammar.start()
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            return all(map(state.advance, [*ids, end]))

        return accepts

    return compile_schema


class ByteTokenizer:
    """Every byte is a token."""

    tokens = BYTES
    special_token_ids = (END,)
    eos_token_id = END
    bos_token_id = None

    def __call__(self, text: str | bytes) -> list[int]:
        """The bytes of a text."""
        return list(text.encode() if isinstance(text, str) else text)


def llguidance() -> Callable[[Any], Accepts]:
    import llguidance as package

    tokenizer = package.LLTokenizer(package.TokenizerWrapper(ByteTokenizer()))

    def compile_schema(schema: Any) -> Accepts:
        try:
            source = package.LLMatcher.grammar_from_json_schema(
                json.dumps(schema), defaults=SEPARATORS
            )
        except ValueError as error:
            raise RefusedError(str(error)) from None
        matcher = package.LLMatcher(tokenizer, source, log_level=0)
        if matcher.is_error():
            raise RefusedError(matcher.get_error())

        def accepts(text: str) -> bool:
            state, ids = matcher.deep_copy(), list(text.encode())
            return bool(state.try_consume_tokens(ids) == len(ids) and state.is_accepting())

        return accepts

    return compile_schema


def xgrammar() -> Callable[[Any], Accepts]:
    import xgrammar as package

    info = package.TokenizerInfo(BYTES, vocab_size=len(BYTES), stop_token_ids=[END])
    compiler = package.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile_schema(schema: Any) -> Accepts:
        try:
            grammar = compiler.compile_json_schema(
                json.dumps(schema), any_whitespace=False, separators=(", ", ": "), strict_mode=False
            )
        except (RuntimeError, ValueError) as error:
            raise RefusedError(str(error)) from None

        def accepts(text: str) -> bool:
            matcher = package.GrammarMatcher(grammar)
            return bool(matcher.accept_string(text) and matcher.accept_token(END))

        return accepts

    return compile_schema


def outlines_core() -> Callable[[Any], Accepts]:
    from outlines_core.json_schema import build_regex_from_schema

    def compile_schema(schema: Any) -> Accepts:
        try:
            pattern = re.compile(build_regex_from_schema(json.dumps(schema), "[ ]?"))
        # A panic of Rust among them, which is no Exception.
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise RefusedError(str(error)) from None
        return lambda text: pattern.fullmatch(text) is not None

    return compile_schema


PEERS = {"llguidance": llguidance, "xgrammar": xgrammar, "outlines-core": outlines_core}


def figures(folder: Path, compile_schema: Callable[[Any], Accepts]) -> dict[str, Any]:
    """Counts for this engine, and beside them those of each package that is installed."""
    groups = read(folder)
    ours = run(groups, compile_schema)
    peers: dict[str, Any] = {}
    together: set[tuple[str, str]] = set()
    for name, make in PEERS.items():
        try:
            compile_peer = make()
        except ImportError:
            peers[name] = "absent"
            continue
        outcome = run(groups, compile_peer)
        peers[name] = counts(outcome)
        together |= outcome.right
    return {
        **counts(ours),
        "schemas": len(groups),
        "instances": sum(len(group.tests) for group in groups),
        "wrong_instances": ours.wrong,
        "by_format": ours.by_format,
        "peers": peers,
        "right_of_peers_together": len(together),
        "right_only_of_peers": sorted(": ".join(name) for name in together - ours.right),
    }


def counts(outcome: Outcome) -> dict[str, int]:
    return {
        "accepted": outcome.accepted,
        "refused": outcome.refused,
        "right": len(outcome.right),
        "wrong": len(outcome.wrong),
    }
