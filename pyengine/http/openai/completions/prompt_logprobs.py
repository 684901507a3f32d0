"""Log-probabilities of prompts, as completions with ``echo`` and vLLM's answers write them."""

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from pyengine.errors import InvalidRequestError
from pyengine.http.openai.logprobs import by_token_ids, completion_logprobs
from pyengine.http.openai.schema.common import GenerationRequest
from pyengine.logprobs import TokenLogprob
from pyengine.request.generation import Generation
from pyengine.sampling import MAX_LOGPROBS
from pyengine.tokenizer import Tokenizer

MOST_TOLD = 400_000
"""Most log-probabilities of prompt tokens in one answer: some 25 MB."""

_encode = msgspec.json.Encoder().encode
Entries = list[TokenLogprob | None]


def check_prompt_logprobs(request: GenerationRequest) -> None:
    """Refuse a ``prompt_logprobs`` that is out of range.

    Raises:
        InvalidRequestError: Naming it.
    """
    given = request.prompt_logprobs
    if given is not None and not 0 <= given <= MAX_LOGPROBS:
        raise InvalidRequestError(
            f"'prompt_logprobs' must be from 0 to {MAX_LOGPROBS}, not {given}.",
            param="prompt_logprobs",
        )


def check_prompt_logprobs_size(
    top: int | None, prompts: Sequence[Sequence[int]], n: int, param: str = "prompt_logprobs"
) -> None:
    """Refuse an answer that would have too many log-probabilities of its prompts.

    Raises:
        InvalidRequestError: Naming ``param``.
    """
    told = 0 if top is None else n * (top + 1) * sum(map(len, prompts))
    if told > MOST_TOLD:
        raise InvalidRequestError(
            f"'{param}' asks for {told} log-probabilities of prompt tokens in all choices; "
            f"{MOST_TOLD} are the most in one request.",
            param=param,
        )


def entries_of(generation: Generation, top: int) -> Entries:
    """The entries of the prompt of a request that tells of it, with ``top`` likely tokens each."""
    entries = generation.prompt_logprobs()
    assert entries is not None
    return [
        entry if entry is None or len(entry.top) <= top else replace(entry, top=entry.top[:top])
        for entry in entries
    ]


def in_chunks(
    generations: Sequence[Generation], top: int | None
) -> Callable[[int], msgspec.Raw] | None:
    """``prompt_logprobs`` of each choice of a stream; None where ``top`` is."""
    return None if top is None else lambda index: vllm_logprobs(generations[index], top)


def vllm_logprobs(generation: Generation, top: int) -> msgspec.Raw:
    """``prompt_logprobs`` in JSON as vLLM writes them: a mapping by token id for each token.

    The rank of a token is told where it is among the most likely. Encoded token by token, so that
    other threads may run in between.
    """
    made: list[bytes] = []
    for entry in entries_of(generation, top):
        if entry is None:
            made.append(b"null")
            continue
        ranked: dict[str, Any] = {str(entry.token_id): _entry(entry.logprob, None, entry.token)}
        for rank, each in enumerate(entry.top, 1):
            ranked[str(each.token_id)] = _entry(each.logprob, rank, each.token)
        made.append(_encode(ranked))
    return msgspec.Raw(b"[%b]" % b",".join(made))


def _entry(logprob: float, rank: int | None, token: str) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": token}


@dataclass(frozen=True)
class EchoedScores:
    """``logprobs`` of echoed prompts and their answers.

    Attributes:
        prompts: Their token ids.
        texts: Their texts, as they are echoed.
        generations: The answers, ``n`` to a prompt.
        tokenizer: Spells the first tokens.
        top: Likely tokens that are told beside each token.
        n: Answers to a prompt.
        tells: How many generations there are; the first tells of the prompt.
        names: Tokens are called by their ids, not by their text.
    """

    prompts: Sequence[list[int]]
    texts: Sequence[str]
    generations: Sequence[Generation]
    tokenizer: Tokenizer
    top: int
    n: int
    tells: int
    names: bool

    def prompt(self, index: int) -> dict[str, Any]:
        """The prompt's log-probabilities for the first chunk of a stream."""
        return self._made(index, ())

    def whole(self, index: int) -> dict[str, Any]:
        """The log-probabilities of a choice's prompt and answer."""
        return self._made(index, self.generations[index].token_logprobs())

    def _made(self, index: int, answer: Sequence[TokenLogprob]) -> dict[str, Any]:
        """An entry for each token, with text or without."""
        at = index // self.n
        first = self.prompts[at][0]
        spelled = self.tokenizer.token_bytes(first)
        prompt = entries_of(self.generations[index - index % self.tells], self.top)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offset, offsets = 0, []
        for entry in prompt:
            offsets.append(offset)
            offset += len(decoder.decode(spelled if entry is None else entry.bytes))
        known = [*(entry for entry in prompt if entry is not None), *answer]
        made = completion_logprobs(by_token_ids(known) if self.names else known)
        assert made is not None
        end = len(self.texts[at])
        name = f"token_id:{first}" if self.names else spelled.decode("utf-8", "replace")
        return {
            "text_offset": offsets + [end + max(entry.text_offset, 0) for entry in answer],
            "token_logprobs": [None, *made["token_logprobs"]],
            "tokens": [name, *made["tokens"]],
            "top_logprobs": [None, *made["top_logprobs"]],
        }
