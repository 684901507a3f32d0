"""Log-probabilities of prompts, as completions with ``echo`` and vLLM's answers write them."""

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http.openai.logprobs import by_token_ids, completion_logprobs
from pyengine.http.openai.schema.common import GenerationRequest
from pyengine.http.openai.schema.sampling import request_options
from pyengine.logprobs import TokenLogprob
from pyengine.request.generation import Generation
from pyengine.request.prompt_logprobs import prompt_logprobs
from pyengine.sampling import MAX_LOGPROBS

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

Entries = list[TokenLogprob | None]


def check_prompt_logprobs(request: GenerationRequest) -> None:
    """Refuse a ``prompt_logprobs`` that is out of range, or in a stream.

    Raises:
        InvalidRequestError: Naming it.
    """
    given = request.prompt_logprobs
    if given is None:
        return
    if not 0 <= given <= MAX_LOGPROBS:
        raise InvalidRequestError(
            f"'prompt_logprobs' must be from 0 to {MAX_LOGPROBS}, not {given}.",
            param="prompt_logprobs",
        )
    if request.stream:
        raise UnsupportedParameterError(
            "'prompt_logprobs' is not supported in a stream.", param="prompt_logprobs"
        )


async def entries_of_prompts(
    exchange: "Exchange", request: GenerationRequest, prompts: Sequence[list[int]], top: int
) -> list[Entries]:
    """The entries of each prompt's tokens; the first of each is None."""
    engine, options = exchange.service.engine, request_options(request, None)
    return [
        await prompt_logprobs(engine.begin, prompt, top, options, lambda: exchange.gone)
        for prompt in prompts
    ]


def vllm_logprobs(prompt: Sequence[int], entries: Entries) -> list[dict[str, Any] | None]:
    """``prompt_logprobs`` as vLLM writes them: a mapping by token id for each token.

    The rank of a token is told where it is among the most likely.
    """
    made: list[dict[str, Any] | None] = []
    for entry in entries:
        if entry is None:
            made.append(None)
            continue
        ranked: dict[str, Any] = {str(entry.token_id): _entry(entry.logprob, None, entry.token)}
        for rank, each in enumerate(entry.top, 1):
            ranked[str(each.token_id)] = _entry(each.logprob, rank, each.token)
        made.append(ranked)
    return made


def _entry(logprob: float, rank: int | None, token: str) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": token}


def echoed_logprobs(
    first: bytes,
    prompt: Entries,
    text: str,
    generation: Generation | None,
    first_name: str | None = None,
) -> dict[str, Any]:
    """``logprobs`` of a prompt and its answer: an entry for each token, with text or without.

    Args:
        first: The bytes of the prompt's first token.
        prompt: The entries of its tokens.
        text: The prompt's text, as it is echoed.
        generation: Wrote the answer; None where there is none.
        first_name: What the prompt's first token is called where tokens are called by their ids;
            None where they are called by their text.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offset, offsets = 0, []
    for entry in prompt:
        offsets.append(offset)
        offset += len(decoder.decode(first if entry is None else entry.bytes))
    answer = () if generation is None else generation.token_logprobs()
    known = [*(entry for entry in prompt if entry is not None), *answer]
    made = completion_logprobs(known if first_name is None else by_token_ids(known))
    assert made is not None
    end = len(text)
    return {
        "text_offset": offsets
        + [end + entry.text_offset if entry.text_offset >= 0 else end for entry in answer],
        "token_logprobs": [None, *made["token_logprobs"]],
        "tokens": [first_name or first.decode("utf-8", "replace"), *made["tokens"]],
        "top_logprobs": [None, *made["top_logprobs"]],
    }
