"""The engine as an async library: what :class:`AsyncEngine` answers."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Unpack, cast, overload

from pyengine.async_engine import endpoints
from pyengine.async_engine.conversations import begin_chat
from pyengine.async_engine.life import EngineLife
from pyengine.async_engine.prompts import Prompts, is_long
from pyengine.async_engine.requests import Prepared
from pyengine.chat.answer_spec import AnswerSpec
from pyengine.chat.generation import ChatGeneration
from pyengine.chat.messages import Message
from pyengine.chat.options import ChatKeywords, ChatOptions, made_options
from pyengine.chat.tools import Tool
from pyengine.decisions.plan import SCORING, Decisions, made_plan
from pyengine.decisions.questions import Question
from pyengine.logprobs import TokenLogprob
from pyengine.request.embedding import Classification, Embedding, VectorForm, classified, head_of
from pyengine.request.generation import Generation
from pyengine.request.options import EmbedKeywords, GenerateKeywords, RequestOptions
from pyengine.request.submission import checked_params
from pyengine.sampling import SamplingParams
from pyengine.telemetry.preparation import begin_counting

Text = str | Sequence[int]
"""A prompt: text, or token ids."""

_PROMPT_ALONE = SamplingParams(max_tokens=0)


class AsyncEngine(EngineLife):
    """An LLM engine in your asyncio service::

        async with AsyncEngine() as engine:
            async for update in engine.chat([{"role": "user", "content": "Hello!"}]):
                print(update.text, end="")

    Belongs to the loop that started it; its methods are called there. With ``placement="thread"``
    the model runs on a thread of this process: no subprocess, no signal handler. With ``"process"``
    it runs in one of its own, out of reach of what the service does with the GIL; if that process
    dies, another is started and every request goes on where it was.

    ``engine.chat.completions.create(...)``, and the same of ``completions``, ``embeddings`` and
    ``responses``, take and give what OpenAI's client does; see :mod:`pyengine.library`.
    """

    @property
    def _prompts(self) -> Prompts:
        return Prompts(self.max_context, self.tokenizer, self.handler, self.timeline)

    @endpoints.with_completions
    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        params: SamplingParams | None = None,
        **options: Unpack[ChatKeywords],
    ) -> ChatGeneration:
        """Answer a conversation, through the model's chat template and in its chat format::

            answer = await engine.chat(messages, grammar=json_schema(City))
            city = parse_answer(answer.text, City)

        Returns at once. A long conversation, and one with a template of its own, is rendered and
        tokenized on a thread; its errors are raised where the answer is awaited.

        Args:
            messages: Role and content each, as in OpenAI's chat completions; an answer's
                :attr:`~pyengine.chat.answer.ChatAnswer.message` is one.
            params: As :meth:`generate` takes them.
            options: As :class:`~pyengine.chat.options.ChatOptions` has them: tools, tool_choice,
                allowed_tools, parallel_tool_calls, grammar, reasoning, thinking_budget,
                chat_template and template_arguments; and as :meth:`generate` takes them: priority,
                timeout, prediction and so on. Calls follow the schemas of their tools. The grammar
                is that of the answer's text; reasoning may come before it, and calls in its place.

        Raises:
            InvalidRequestError: The model has no template, or it refuses the messages; or the model
                cannot do what is wanted.
        """
        self.connection.connected()
        chat_options, others = made_options(options)
        checked = checked_params(params, self.default_sampling_params)
        return begin_chat(self._prompts, self._requests, messages, checked, chat_options, others)

    async def prepare(
        self, messages: Sequence[Message], params: SamplingParams, options: ChatOptions
    ) -> tuple[AnswerSpec, list[int]]:
        """How a conversation is answered, and the token ids of its prompt; raises what chat does.

        A large conversation, and a template that takes its time, go to a thread.
        """
        conversation = messages, ()
        prompts = self._prompts
        spec = prompts.spec_on_loop(conversation, params, options)
        return await prompts.prepare(lambda _: conversation, params, options, spec)

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[Tool | dict[str, Any]] = (),
        reasoning: bool | None = None,
        chat_template: str | None = None,
        template_arguments: dict[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a conversation, ready for the assistant's answer.

        Takes and raises what :meth:`chat` does.
        """
        options, _ = made_options(
            {
                "tools": tools,
                "reasoning": reasoning,
                "chat_template": chat_template,
                "template_arguments": template_arguments,
            }
        )
        return self._prompts.render(messages, options)

    def generate(
        self,
        prompt: Text,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> Generation:
        """Continue ``prompt``: iterate the result for updates, or await it for the whole.

        Returns at once. A long text is tokenized on a thread; to await the result raises errors.

        Args:
            prompt: Text, or token ids.
            params: How to choose tokens and when to end; None: :attr:`default_sampling_params`.
            options: As :class:`~pyengine.request.options.RequestOptions` has them: priority,
                tenant, cache_salt, timeout, adapter, grammar, close_grammar, prediction,
                prompt_logprobs, prompt_logprobs_from and logits_processors.

        Raises:
            InvalidRequestError: A parameter is out of its range, or the prompt is empty.
            ContextLengthError: Prompt and ``max_tokens`` do not fit the context.
            OverloadedError: The queue is full.
            NotReadyError: The model is still being loaded.
            EngineDeadError: The engine has stopped.
        """
        self.connection.connected()
        checked = checked_params(params, self.default_sampling_params)
        asked = RequestOptions(**options)
        if asked.cost:
            begin_counting()
        if not is_long(prompt) and not is_long(asked.prediction):
            return self.begin(prompt, checked, asked)

        async def tokenized() -> Prepared:
            ids = await self.encode(prompt) if isinstance(prompt, str) else prompt
            return ids, checked, await self._prompts.with_prediction(asked)

        return self._requests.begin_later(tokenized(), checked, asked.prompt_logprobs)

    def begin(self, prompt: Text, params: SamplingParams, options: RequestOptions) -> Generation:
        """As :meth:`generate`, with ``params`` that were validated: once for many answers."""
        self.connection.connected()
        return self._requests.begin(prompt, params, options)

    async def prompt_logprobs(
        self,
        prompt: Text,
        top: int = 0,
        first: int = 0,
        **options: Unpack[EmbedKeywords],
    ) -> list[TokenLogprob | None]:
        """The log-probability of each token of ``prompt`` after those before it; None of the first.

        Args:
            prompt: Text, or token ids.
            top: How many most likely tokens are told in the place of each, 0 to 20.
            first: Tokens up to this one are left out, and are None: what lies before it may come
                from the prefix cache.
            options: Some of :meth:`generate`: priority, tenant, cache_salt, timeout, adapter.

        Raises:
            PyengineError: As :meth:`generate`.
        """
        self.connection.connected()
        token_ids = await self.encode(prompt) if isinstance(prompt, str) else prompt
        asked = RequestOptions(**options, prompt_logprobs=top, prompt_logprobs_from=first)
        scored = (await self.begin(token_ids, _PROMPT_ALONE, asked)).prompt_logprobs
        assert scored is not None
        return scored

    # To a type checker a str is also a sequence of prompts; the first overload that fits counts.
    @overload
    async def embed(  # type: ignore[overload-overlap]
        self,
        prompt: Text,
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        **options: Unpack[EmbedKeywords],
    ) -> Embedding: ...
    @overload
    async def embed(
        self,
        prompt: Sequence[Text],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        **options: Unpack[EmbedKeywords],
    ) -> list[Embedding]: ...
    async def embed(
        self,
        prompt: Text | Sequence[Text],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        **options: Unpack[EmbedKeywords],
    ) -> Embedding | list[Embedding]:
        """The vector of a prompt, or of several in one batch, as the model's folder wants it made.

        A folder without ``modules.json`` is of a model that was not trained for vectors
        (``engine.vectors.declared`` is false): its last token's state is what there is.

        Args:
            prompt: Text or token ids, or several of them.
            dimensions: Numbers to keep of each vector, from the first on; None keeps all.
            normalize: Whether a vector has length 1; None is as the model has it.
            options: Some of :meth:`generate`: priority, tenant, cache_salt, timeout, adapter.

        Raises:
            InvalidRequestError: The model gives no vectors, or a parameter is out of its range.
            PyengineError: As :meth:`generate`.
        """
        self.connection.connected()
        form = VectorForm(dimensions, normalize)
        form.check(self.vectors)
        one = isinstance(prompt, str) or (bool(prompt) and all(isinstance(t, int) for t in prompt))
        prompts = cast("Sequence[Text]", [prompt] if one else prompt)
        generations = await self._pooled(prompts, options)
        embeddings = [await form.embedding(generation, self.vectors) for generation in generations]
        return embeddings[0] if one else embeddings

    async def classify(
        self, prompts: Sequence[Text], **options: Unpack[EmbedKeywords]
    ) -> list[Classification]:
        """What a classifier (``*ForSequenceClassification``) says of each prompt, in one batch.

        Args:
            prompts: Texts or token ids.
            options: As of :meth:`embed`.

        Raises:
            InvalidRequestError: The model is no classifier.
            PyengineError: As :meth:`generate`.
        """
        self.connection.connected()
        head = head_of(self.vectors)
        return [await classified(each, head) for each in await self._pooled(prompts, options)]

    async def _pooled(self, prompts: Sequence[Text], options: EmbedKeywords) -> list[Generation]:
        token_ids = [await self.encode(each) if isinstance(each, str) else each for each in prompts]
        asked = RequestOptions(**options, pooling=self.vectors.pooling)
        return [self.begin(each, SamplingParams(), asked) for each in token_ids]

    async def decide(
        self,
        conversation: str | Sequence[dict[str, Any]],
        questions: Sequence[Question],
        *,
        orders: int = 1,
        **options: Unpack[EmbedKeywords],
    ) -> Decisions:
        """Answers questions about an input by probabilities, which are those of the model's logits.

        All questions share the input, which is computed once. The probability of an option is that
        of an answer that can only be one of the options.

        Args:
            conversation: The input: a text, or messages as :meth:`chat` takes them.
            questions: At most 400 of :class:`~pyengine.decisions.questions.Predicate`, ``Choice``
                and ``Score``.
            orders: In how many orders the model is told of a question's options, each of which
                begins with another; probabilities are the means. 1 is the order of the question.
            options: Some of :meth:`generate`: priority, tenant, cache_salt and timeout.

        Raises:
            InvalidRequestError: A question is out of its bounds, or the model takes no
                conversations.
            PyengineError: As :meth:`generate`.
        """
        self.connection.connected()
        if isinstance(conversation, str):
            conversation = [{"role": "user", "content": conversation}]
        read, _ = self._prompts.read(conversation)
        plan = await made_plan(self.handler, self.tokenizer, read, questions, orders)
        return await plan.decide(
            lambda ids, asked: self.begin(ids, SCORING, asked), RequestOptions(**options)
        )

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a prompt; a long text is tokenized on a thread.

        Raises:
            ContextLengthError: It is so long that it cannot fit the context.
        """
        return await self._prompts.encode(text, add_special_tokens=add_special_tokens)

    completions = endpoints.Namespace("completions")
    embeddings = endpoints.Namespace("embeddings")
    responses = endpoints.Namespace("responses")

    def endpoint(self, name: str) -> Any:
        """The endpoint that OpenAI's client calls ``name``, as the namespaces have it."""
        return self._endpoints.endpoint(name)

    async def close(self) -> None:
        """End every request, stop the engine, free its memory and what it stored. Idempotent."""
        await super().close()
        if "_endpoints" in self.__dict__:
            await self._endpoints.close()

    @cached_property
    def _endpoints(self) -> endpoints.Endpoints:
        return endpoints.load_endpoints(self)
