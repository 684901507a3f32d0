"""Makes tokenizers of folders without a tokenizer.json, of the files that they have instead.

::

    tekken.json              Mistral's, since Nemo
    tokenizer.model          SentencePiece's, or tiktoken's ranks
    NAME.tiktoken            tiktoken's ranks
    vocab.json, merges.txt   GPT-2's
"""

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from pyengine.errors import ModelLoadError
from pyengine.tokenizer.byte_pairs import LLAMA_3, QWEN_2, byte_pairs, from_ranks
from pyengine.tokenizer.json_files import read_json, token_text
from pyengine.tokenizer.pieces import tokenizer_of
from pyengine.tokenizer.sentencepiece import CONTROL, UNKNOWN, USER_DEFINED, read_model

QWEN_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "QWenTokenizer")
OTHER_RULES = ("TikTokenTokenizer", "BertTokenizer", "BertTokenizerFast", "XLMTokenizer")
"""Classes of tokenizer_config.json that divide text by rules which no file has."""
CONTROLS = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
"""Names for Mistral's files without them; others are ``<SPECIAL_20>`` and so on."""


def made_of_files(folder: Path) -> Tokenizer:
    """The tokenizer of a folder without a tokenizer.json.

    Raises:
        ModelLoadError: There are no files of one, or they are not supported; says which there are.
    """
    config = read_json(folder / "tokenizer_config.json")
    name = str(config.get("tokenizer_class"))
    tiktoken = sorted(folder.glob("*.tiktoken"))
    pieces = next((p for n in PIECES if (p := folder / n).is_file()), None)
    path = folder / "tokenizer.json"
    try:
        if name in OTHER_RULES:
            raise ValueError(f"tokenizers of class {name!r} are not supported")
        if (path := folder / "tekken.json").is_file():
            return _tekken(read_json(path))
        if tiktoken or pieces is not None:
            path = tiktoken[0] if tiktoken else pieces or path
            data = path.read_bytes()
            ranks = _ranks(data)
            return _of_ranks(ranks, config) if ranks else _of_pieces(data, config)
        if (path := folder / "vocab.json").is_file():
            return _of_merges(read_json(path), folder, config)
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelLoadError(
            f"cannot make a tokenizer of {path}: {error}. Put a tokenizer.json into the folder",
            param="model",
        ) from error
    raise ModelLoadError(
        f"{folder} has no tokenizer: no tokenizer.json, tekken.json, tokenizer.model, *.tiktoken, "
        "or vocab.json with merges.txt",
        param="model",
    )


PIECES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


def _tekken(given: dict[str, Any]) -> Tokenizer:
    """Mistral's: the ids of control tokens come before those of all others."""
    config = given["config"]
    count = int(config["default_num_special_tokens"])
    size = int(config["default_vocab_size"]) - count
    tokens = [base64.b64decode(each["token_bytes"]) for each in given["vocab"][:size]]
    named = given.get("special_tokens")
    if named is None:
        named = [{"rank": rank, "token_str": name} for rank, name in enumerate(CONTROLS)]
    spelled = {int(each["rank"]): str(each["token_str"]) for each in named}
    tokenizer = from_ranks(tokens, count, str(config["pattern"]))
    controls = [spelled.get(rank, f"<SPECIAL_{rank}>") for rank in range(count)]
    return _with_tokens(tokenizer, dict(enumerate(controls)), set(controls), "<s>")


def _ranks(data: bytes) -> list[bytes]:
    """Tokens in the order of tiktoken's ranks: a line has a token in base64, and its rank."""
    found: dict[int, bytes] = {}
    for line in data.splitlines():
        token, _, rank = line.partition(b" ")
        try:
            found[int(rank)] = base64.b64decode(token, validate=True)
        except (ValueError, binascii.Error):
            return []
    return [found[rank] for rank in sorted(found)] if set(found) == set(range(len(found))) else []


def _of_ranks(tokens: list[bytes], config: Mapping[str, Any]) -> Tokenizer:
    qwen = config.get("tokenizer_class") in QWEN_CLASSES
    tokenizer = from_ranks(tokens, 0, QWEN_2 if qwen else LLAMA_3, nfc=qwen)
    return _with_added(tokenizer, config)


def _of_pieces(data: bytes, config: Mapping[str, Any]) -> Tokenizer:
    model = read_model(data)
    tokenizer, tokens = tokenizer_of(model.pieces), model.pieces.tokens
    special = {
        index: tokens[index]
        for index, kind in enumerate(model.kinds)
        if kind in (CONTROL, UNKNOWN, USER_DEFINED)
    }
    controls = {tokens[at] for at, kind in enumerate(model.kinds) if kind in (CONTROL, UNKNOWN)}
    bos = None if model.bos is None else tokens[model.bos]
    bos = token_text(config.get("bos_token")) or bos
    begins = bos if config.get("add_bos_token", True) and tokenizer.token_to_id(bos or "") else None
    return _with_added(_with_tokens(tokenizer, special, controls, begins), config)


def _of_merges(vocab: dict[str, Any], folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [
        tuple(line.split(" ", 1)) for line in lines if line and not line.startswith("#version")
    ]
    qwen = config.get("tokenizer_class") in QWEN_CLASSES
    tokenizer = byte_pairs(vocab, merges, QWEN_2 if qwen else "", nfc=qwen)  # type: ignore[arg-type]
    added = {**vocab, **read_json(folder / "added_tokens.json")}
    names = ("special_tokens_map.json", "tokenizer_config.json")
    special = {
        text
        for name in names
        for key, value in read_json(folder / name).items()
        if key.endswith("_token") and (text := token_text(value)) in added
    }
    ids = {int(index): str(token) for token, index in added.items() if token not in vocab}
    ids |= {int(added[token]): token for token in special if token is not None}
    tokenizer = _with_tokens(tokenizer, ids, {token for token in special if token}, None)
    tokenizer = _with_added(tokenizer, config)
    bos = token_text(config.get("bos_token"))
    if config.get("add_bos_token") and bos is not None:
        _begin_with(tokenizer, bos)
    return tokenizer


def _with_added(tokenizer: Tokenizer, config: Mapping[str, Any]) -> Tokenizer:
    """With the tokens that tokenizer_config.json adds."""
    added = config.get("added_tokens_decoder") or {}
    tokens = {int(index): str(each["content"]) for index, each in added.items()}
    special = {str(each["content"]) for each in added.values() if each.get("special")}
    return _with_tokens(tokenizer, tokens, special, None)


def _with_tokens(
    tokenizer: Tokenizer, tokens: Mapping[int, str], special: set[str], begins: str | None
) -> Tokenizer:
    """With tokens that are recognised before all others, by their ids.

    Raises:
        ValueError: An id is another token's.
    """
    spec = json.loads(tokenizer.to_str())
    known = {each["id"]: each for each in spec["added_tokens"]}
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    taken = {index: token for token, index in vocab.items()}
    for index, token in tokens.items():
        if taken.get(index, token) != token or vocab.get(token, index) != index:
            raise ValueError(f"token {token!r} has the id {index}, which is {taken.get(index)!r}'s")
        made = AddedToken(token, normalized=False, special=token in special)
        known[index] = {
            "id": index, "content": token, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": made.normalized, "special": made.special,
        }  # fmt: skip
    # Where ids leave gaps, the tokens of the model's unused rows fill them.
    spec["added_tokens"] = [known[index] for index in sorted(known)]
    model = spec["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] |= {token: index for index, token in tokens.items()}
    made_tokenizer = Tokenizer.from_str(json.dumps(spec))
    if begins is not None:
        _begin_with(made_tokenizer, begins)
    return made_tokenizer


def _begin_with(tokenizer: Tokenizer, token: str) -> None:
    """Begin texts with a special token."""
    index = tokenizer.token_to_id(token)
    if index is None:
        raise ValueError(f"{token!r}, with which texts begin, is no token")
    tokenizer.post_processor = TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A $B", special_tokens=[(token, index)]
    )
