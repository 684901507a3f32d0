"""What the fields of requests mean, for ``/openapi.json`` and ``docs/API.md``.

A name means the same wherever it stands, and is described once: parameters and options of the
library in its docstrings, fields of one type in the docstring of that, under ``Attributes``,
objects in the first sentence of theirs, and all others here.
"""

import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect as kinds

from pyengine.chat.options import ChatOptions
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams, bound

_MEANINGS = {
    "abort_all": "End every request.",
    "add_special_tokens": "Whether the tokenizer adds its special tokens, such as the first one.",
    "anchor": "The time that the seconds count from.",
    "annotations": "Null or empty, as answers have it.",
    "arguments": "The arguments as JSON.",
    "audio": "Null, as answers have it.",
    "background": "Answer at once, and go on in the background; needs the response to be stored.",
    "best_of": "As many answers as n.",
    "chat_template": "A template in the place of the model's own, where the server takes any.",
    "choice": "The texts of which the answer is one.",
    "choices": "The options, 2 to 255, all different.",
    "clear_at_least": "The fewest tokens that clearing must save.",
    "clear_tool_inputs": "Whether the arguments of calls are cleared too.",
    "close_within_max_tokens": "End what the grammar has begun within max_tokens.",
    "completion_window": "Within what time; batches are answered as there is room.",
    "content": "The text, or its parts.",
    "context": "What is said of the document before its text.",
    "continuous_usage_stats": "Whether every chunk tells the usage so far.",
    "data": "The text, or what only its own server can read.",
    "definition": "The grammar.",
    "description": "What it is for, or when it applies; the model reads it.",
    "dimensions": "Numbers to keep of each vector, from the first on.",
    "disable_parallel_tool_use": "At most one call.",
    "display": "Whether thinking is shown, or comes in the signature alone.",
    "documents": "The documents, as texts or objects.",
    "ebnf": "A grammar that the answer follows, in EBNF or GBNF.",
    "echo": "Whether the answer begins with the prompt.",
    "edits": "What is left out, and when.",
    "effort": "The effort, for a chat template that reads one.",
    "enable_thinking": "Whether the model thinks first, where its template has a switch for that.",
    "encoding_format": "Vectors as numbers, or as base64 of float32.",
    "endpoint": "The path of the batch's requests.",
    "exclude_tools": "Tools whose results are kept.",
    "format": "The form of the text: a JSON Schema, a grammar, or any.",
    "function_call": "Older form of tool_choice, and of an answer's call.",
    "functions": "Older form of tools.",
    "grammar": "A grammar in EBNF, GBNF or Lark that the text follows.",
    "id": "Its id.",
    "include": "What the response has besides: log-probabilities, packed reasoning.",
    "include_obfuscation": "Whether deltas are padded, so that their sizes tell nothing.",
    "include_reasoning": "Whether the answer has the reasoning.",
    "include_usage": "Whether a last chunk tells the usage.",
    "index": "Its place, which it has anyway.",
    "input": "The input: a text, or a list of items or texts.",
    "input_file_id": "The file of the batch's requests.",
    "instruction": "What a reranker is to look for.",
    "instructions": "What the model is told before the input, or what a question asks.",
    "json": "A JSON Schema that the answer follows.",
    "json_object": "The answer is a JSON object.",
    "json_schema": "A JSON Schema that the answer follows.",
    "keep": "How much is kept.",
    "key_order": "Whether keys come in the schema's order, or in any.",
    "label": "The level's name.",
    "levels": "The levels, 2 to 255, from the lowest to the highest.",
    "logits_processors": "The operator's logits processors to use, with their arguments.",
    "max_tool_calls": "Bounds calls that the server runs; it runs none.",
    "media_type": "The form of the text.",
    "messages": "The conversation.",
    "metadata": "The client's own notes: at most 16, kept with what is stored.",
    "mode": "Whether one of the tools must be called.",
    "model": "The model that is to answer; without it, the one that is served.",
    "n": "Answers to each prompt.",
    "name": "Its name.",
    "normalize": "Whether vectors have length 1; without it, as the model has it.",
    "orders": "In how many orders the options are told to the model; the means are given.",
    "parameters": "The JSON Schema of the arguments.",
    "parsed": "What OpenAI's client has read out of an answer.",
    "parsed_arguments": "What OpenAI's client has read out of the arguments.",
    "previous_response_id": "A stored response that the conversation goes on from.",
    "prompt": "The prompt: text or token ids, of one or of several.",
    "prompt_logprobs": "Tell log-probabilities of the prompt's tokens, and this many others each.",
    "purpose": "What the file is for.",
    "query": "The query.",
    "questions": "The questions, 1 to 400.",
    "reasoning_content": "What the assistant thought before it answered.",
    "reasoning_effort": "The effort, for a chat template that reads one.",
    "refusal": "Null, as answers have it.",
    "regex": "A regular expression that the answer matches as a whole.",
    "repeat_last_n": "How many of the last tokens penalties look at: -1 is all, 0 none.",
    "request_id": "The id of the request that is to end.",
    "response_format": "What the text must look like: a JSON Schema, a grammar, JSON, or any.",
    "return_documents": "Whether results have the documents' texts.",
    "return_token_ids": "Add the ids of the prompt's and the answer's tokens.",
    "return_token_strs": "Add the text of each token.",
    "return_tokens_as_token_ids": "Name tokens of log-probabilities token_id:N.",
    "role": "Who speaks.",
    "schema": "The JSON Schema.",
    "seconds": "Seconds from the anchor on.",
    "signature": "The thinking, packed.",
    "source": "The document's text.",
    "store": "Whether the answer is kept for later requests.",
    "stream": "Whether the answer comes in parts, as it is generated.",
    "strict": "Whether arguments follow the schema to the letter, or it is refused.",
    "structural_tag": "Texts of a grammar each behind their triggers.",
    "structures": "The tags and the schemas behind them.",
    "suffix": "What stands behind the gap that the answer fills.",
    "syntax": "The grammar's form: Lark or a regular expression.",
    "system": "The system message.",
    "text": "The text; of a response, what it must look like.",
    "text_1": "A text, or several.",
    "text_2": "A text, or several, each compared with text_1 or with its own.",
    "thinking_token_budget": "Most tokens of the reasoning, closed behind them; -1 is any number.",
    "title": "The document's title.",
    "tokens": "Token ids.",
    "tool_call_id": "The id of the call that this is the result of.",
    "tool_calls": "The assistant's calls.",
    "tool_choice": "Whether tools may or must be called, or which one.",
    "tool_name": "The tool's name.",
    "tool_use_id": "The id of the call that this is the result of.",
    "tools": "The tools that the model may call.",
    "top_logprobs": "Likely tokens whose log-probabilities are told in the place of each, 0 to 20.",
    "top_n": "The most results; 0 is all.",
    "trigger": "From what size on.",
    "triggers": "The texts that structures begin with.",
    "truncate_prompt_tokens": "Keep this many of the prompt's last tokens; -1 keeps what fits.",
    "truncation": "auto leaves the oldest turns out where the context is too short.",
    "type": "What kind it is.",
    "unenforceable": "Whether keywords that cannot be enforced are refused, or told of.",
    "value": "The number, or the option.",
    "verbosity": "How much is said, for a chat template that reads it.",
    "whitespace": "How much white space JSON has.",
}
# Fields whose meaning the library's docstrings have by another name.
_LIBRARY = {
    "budget_tokens": "thinking_budget",
    "chat_template_kwargs": "template_arguments",
    "include_stop_str_in_output": "include_stop",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
    "user": "tenant",
    "user_id": "tenant",
}
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
_SENTENCE = re.compile(r"(?:``\w+``: )?(.+?\.)(?:\s|$)", re.DOTALL)


@cache
def _documented(kind: type) -> dict[str, str]:
    """The meanings of a type's fields that its docstring has, and those of its bases."""
    texts = [inspect.cleandoc(base.__doc__ or "") for base in reversed(kind.__mro__)]
    entries = [
        entry for text in texts for entry in _ENTRY.findall(text.partition("Attributes:\n")[2])
    ]
    return {name: " ".join(meaning.split()) for name, meaning in entries}


def meaning(kind: type[msgspec.Struct], name: str) -> str | None:
    """What a field of a request means, in a sentence or a few; None where it is not described."""
    known = _documented(kind).get(name) or _MEANINGS.get(name) or _of_object(kind, name)
    if known is not None:
        return known
    if name.startswith("guided_"):
        return f"Other name of structured_outputs.{name.removeprefix('guided_')}."
    library = _LIBRARY.get(name, name)
    found = _documented(SamplingParams).get(library)
    if found is not None and (wanted := bound(library)) is not None:
        found += f" It must be {wanted}."
    options = _documented(RequestOptions) | _documented(ChatOptions)
    return found or _first_sentence(options.get(library))


def _of_object(kind: type[msgspec.Struct], name: str) -> str | None:
    """What is said of the object that a field may have; None where it has no object."""
    info: Any = kinds.type_info(kind)
    field = next(field for field in info.fields if field.encode_name == name)
    for option in getattr(field.type, "types", [field.type]):
        if isinstance(option, kinds.StructType):
            return _first_sentence(inspect.cleandoc(option.cls.__doc__ or ""))
    return None


def _first_sentence(text: str | None) -> str | None:
    found = _SENTENCE.match(text or "")
    return None if found is None else " ".join(f"{found[1][:1].upper()}{found[1][1:]}".split())


def structs_within(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """A struct and those within it, all the way down, each once."""
    seen: set[Any] = set()
    todo: list[Any] = [kinds.type_info(kind)]
    while todo:
        at = todo.pop()
        if isinstance(at, kinds.UnionType):
            todo += at.types
        elif isinstance(at, kinds.ListType):
            todo.append(at.item_type)
        elif isinstance(at, kinds.StructType) and at.cls not in seen:
            seen.add(at.cls)
            yield at.cls
            todo += [field.type for field in at.fields]
