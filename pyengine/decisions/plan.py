"""The prompts that answer questions about one input, and what becomes of their results."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyengine.chat.content_tokens import Prompt
from pyengine.chat.handler import ChatHandler
from pyengine.chat.messages import Message, text_of_parts
from pyengine.chat.options import ChatOptions
from pyengine.completion import Completion, Usage
from pyengine.decisions.option_trie import OptionTrie
from pyengine.decisions.questions import Answer, Question, answered, check_questions, options_of
from pyengine.decisions.wording import spellings, worded
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.request.generation import Generation
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams
from pyengine.tokenizer import Tokenizer

# Stands between input and question while a template renders them: what is before it is the same
# for all questions, and is tokenized once.
_JOINT = "\ue0fd\ue0fe"
# Prompts that are with the engine at once: enough for its steps, and few for its queue.
_AT_ONCE = 128

SCORING = SamplingParams(max_tokens=0)
"""The parameters of requests that score what may follow their prompts."""

Begin = Callable[[list[int], RequestOptions], Generation]
"""Begins a request with :data:`SCORING`."""


@dataclass(frozen=True)
class Decisions:
    """The answers to questions about one input.

    Attributes:
        answers: In the order of the questions.
        usages: Counts of each prompt; of what prompts share, all but the first say that it was
            cached.
    """

    answers: list[Answer]
    usages: list[Usage]


@dataclass(frozen=True)
class Asked:
    """One question in one order of its options.

    Attributes:
        number: The question's place among all.
        prompt: The token ids of input and question.
        trie: The options.
        order: The place in the question of each option of the trie.
    """

    number: int
    prompt: list[int]
    trie: OptionTrie
    order: list[int]


async def made_plan(
    handler: ChatHandler,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    questions: Sequence[Question],
    orders: int,
) -> "Plan":
    """Returns the plan of questions, once they are checked; makes it on a thread."""
    check_questions(questions)
    if not isinstance(orders, int) or orders < 1:
        raise InvalidRequestError("'orders' must be at least 1", param="orders")
    return await asyncio.to_thread(Plan, handler, tokenizer, messages, questions, orders)


class Plan:
    """The prompts of some questions about one input. Any thread; takes milliseconds."""

    def __init__(
        self,
        handler: ChatHandler,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        questions: Sequence[Question],
        orders: int,
    ) -> None:
        """Make the prompts.

        Args:
            handler: The model's chat template and chat format.
            tokenizer: The model's tokenizer.
            messages: The input.
            questions: The questions, which were checked.
            orders: In how many orders the options of each are told to the model; the probabilities
                are the means. Each order begins with another option.

        Raises:
            InvalidRequestError: The model's template cannot render the input.
        """
        self._handler, self._tokenizer = handler, tokenizer
        self._messages, self._questions = messages, questions
        self._known: dict[Prompt, list[int]] = {}
        self._options = _chat_options(handler)
        ends = tokenizer.eos_token_ids
        if not ends:
            raise InvalidRequestError("this model decides nothing: it has no token that ends texts")
        self._end = ends[0]
        self.asked = [
            self._ask(number, question, first)
            for number, question in enumerate(questions)
            for first in range(min(orders, len(options_of(question))))
        ]

    def prompts(self) -> Iterator[tuple[list[int], tuple[int, ...]]]:
        """The token ids of each prompt, and the tokens that may follow it."""
        for each in self.asked:
            for place in each.trie.places:
                yield [*each.prompt, *place.path], place.children

    def answers(self, logprobs: Sequence[Sequence[float]]) -> list[Answer]:
        """The answers, of the log-probabilities behind each of :meth:`prompts`."""
        found, sums = iter(logprobs), [[0.0] * len(options_of(each)) for each in self._questions]
        counts = [0] * len(self._questions)
        for each in self.asked:
            of_places = [next(found) for _ in each.trie.places]
            for place, probability in zip(
                each.order, each.trie.probabilities(of_places), strict=True
            ):
                sums[each.number][place] += probability
            counts[each.number] += 1
        return [
            answered(question, [each / count for each in of_options])
            for question, of_options, count in zip(self._questions, sums, counts, strict=True)
        ]

    async def decide(self, begin: Begin, options: RequestOptions) -> Decisions:
        """Ask the engine for the answers; on the loop of ``begin``."""
        running: deque[Generation] = deque()
        done: list[Completion] = []
        for token_ids, children in self.prompts():
            if len(running) == _AT_ONCE:
                done.append(await running.popleft())
            running.append(begin(token_ids, replace(options, following_logprobs=children)))
        done += [await each for each in running]
        answers = self.answers([each.following_logprobs or () for each in done])
        return Decisions(answers, [each.usage for each in done])

    def _ask(self, number: int, question: Question, first: int) -> Asked:
        options, places = options_of(question), list(range(len(options_of(question))))
        order = places[first:] + places[:first]
        spelled = spellings(options)
        text = worded(question, [options[at] for at in order], [spelled[at] for at in order])
        tokens = [self._tokenizer.encode(spelled[at], add_special_tokens=False) for at in order]
        return Asked(number, self._prompt(text), OptionTrie(tokens, self._end), order)

    def _prompt(self, question: str) -> list[int]:
        """The token ids of the input and a question behind it."""
        *before, last = self._messages
        if last.role == "user":
            content = last.content or ""
            text = content if isinstance(content, str) else text_of_parts(content, "input")
            messages = [*before, Message("user", f"{text}\n\n{_JOINT}{question}")]
        else:
            messages = [*self._messages, Message("user", f"{_JOINT}{question}")]
        prompt, _ = self._handler.render(messages, self._options)
        parts = _parted(prompt)
        if parts is None:
            raise InvalidRequestError(
                "the model's chat template does not write messages as they are", param="input"
            )
        head, tail = parts
        if head not in self._known:
            self._known[head] = self._handler.encode(head)
        return [*self._known[head], *self._handler.encode(tail), *self._handler.text_start(prompt)]


def _parted(prompt: Prompt) -> tuple[Prompt, Prompt] | None:
    """A prompt in two, before the joint and behind it; None where it is not there once."""
    texts = prompt.text.split(_JOINT)
    if len(texts) != 2:
        return None
    respelled = [None, None] if prompt.respelled is None else prompt.respelled.split(_JOINT)
    first, second = (Prompt(*pair) for pair in zip(texts, respelled, strict=True))
    return first, second


def _chat_options(handler: ChatHandler) -> ChatOptions:
    """A model that can answer without thinking is to do so."""
    if not handler.reasons:
        return ChatOptions()
    options = ChatOptions(reasoning=False)
    try:
        handler.render([Message("user", "Hi")], options)
    except UnsupportedParameterError:
        return ChatOptions()
    return options
