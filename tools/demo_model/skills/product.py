"""Who the model is, and how to use pyengine."""

import random

from tools.demo_model.dialogue import Exchange, Turn
from tools.demo_model.wording import dress, say

__all__ = ["product"]

_HOW = "[How do I|How can I|How do you|How could I|What do I do to|Show me how to|I want to|"
_HOW += "How would one|Explain how to|Can you tell me how to|What is the way to|Is there a way to]"
_WHAT = (
    "[What is|What's|Explain|Tell me about|What does it mean:|Can you explain|What about|Define]"
)
_IT = "[pyengine|the engine|this engine|PyEngine|the server]"

_TOPICS: tuple[tuple[str, str, str], ...] = (
    (
        "[Who are you|What are you|What is your name|What's your name|Tell me about yourself|"
        "Introduce yourself|Who am I talking to|What model are you|Which model is this|"
        "What kind of model are you|Who is this|Are you ChatGPT|Are you a language model|"
        "Do you have a name|What should I call you|Which model are you|Describe yourself|"
        "What is this model|Say who you are]",
        "I am the pyengine demo model, a very small language model that runs on your own machine. "
        "I ship with pyengine so that it can answer without a download.",
        "pyengine demo model",
    ),
    (
        "[What can you do|What do you know|What are your abilities|What are you able to do|"
        "What are you good at|How can you help me|What can I ask you|What can I ask|"
        "What are your skills|What do you do|Which questions can you answer|"
        "What things can you do|List your abilities|What tasks can you do]",
        "I can greet you, do small sums, name capitals and other common facts, repeat and spell "
        "words, extract fields as JSON, call tools, and tell you about pyengine.",
        "small sums",
    ),
    (
        "[How big are you|How large are you|What is your size|How many parameters do you have|"
        "How small are you|What's your parameter count|Are you a big model|Are you small|"
        "How many weights do you have|Are you a large model]",
        "I have about two million parameters, so I am tiny. I fit in five megabytes.",
        "two million",
    ),
    (
        "[Who made you|Who created you|Who trained you|Where do you come from|Who built you|"
        "How were you trained|How were you made|What is your training data|What were you trained "
        "on|Where did you learn this|Who is your maker]",
        "I was trained by the pyengine project from scratch, on dialogues that a script makes and "
        "on docstrings of the Python standard library.",
        "pyengine project",
    ),
    (
        f"[{_WHAT} {_IT}|What is pyengine for|What does pyengine do|Why pyengine|"
        "What is this software|What kind of engine is pyengine|What program is this]",
        "pyengine is an engine that serves language models. It is built from asyncio actors in "
        "Python, with its hot paths in Rust, and speaks the OpenAI API over HTTP.",
        "serves language models",
    ),
    (
        f"[{_HOW} [serve|start|run|launch|start up|boot|use] [{_IT}|a server|a model|"
        "the demo model|the API server]|"
        "What is the command to [serve|start the server|serve a model]|"
        "Which command starts the server|Start the server|Serve a model]",
        "Run `pyengine serve` in a terminal. Without a model it serves me, the demo model, and "
        "listens on http://localhost:8000.",
        "`pyengine serve`",
    ),
    (
        f"[{_HOW} [chat|talk] [with|to] [you|a model|the model|the demo model|{_IT}]"
        "[| in the terminal| from the command line]|What does pyengine chat do|"
        "Which command starts a chat|What is the chat command|Is there a chat command]",
        "Run `pyengine chat` in a terminal and type your message. It talks to the model right "
        "there.",
        "`pyengine chat`",
    ),
    (
        f"[{_HOW} [use|call|reach|connect to|query|access] [the API|the OpenAI API|the endpoint|"
        "the HTTP API|it with the OpenAI client|the server over HTTP|it from the OpenAI library]|"
        "[What is|What's|Where is|Which is] the [endpoint|base URL|URL|address|OpenAI endpoint|"
        "API address|port][| of the server| of pyengine]|Does pyengine support the OpenAI API|"
        "Is pyengine compatible with OpenAI|What port does it use]",
        "Point any OpenAI client at http://localhost:8000/v1 and ask for chat completions. Any "
        "API key will do on your own machine.",
        "http://localhost:8000/v1",
    ),
    (
        f"[{_HOW} [embed|use] {_IT} in [Python|my program|my code|a Python program|my own code]|"
        f"{_HOW} [use|create] [an AsyncEngine|AsyncEngine|the Python API|the engine from Python]|"
        f"{_WHAT} [AsyncEngine|the AsyncEngine|the Python API]|Is there a Python API|"
        "Can I use pyengine as a library]",
        "Import `AsyncEngine` from pyengine, create it inside an asyncio program, and iterate over "
        "what it generates with `async for`.",
        "`AsyncEngine`",
    ),
    (
        f"[{_HOW} [get|use|request|turn on|enable|ask for] [JSON|JSON mode|JSON output|structured "
        f"output|structured outputs|valid JSON]|{_WHAT} [JSON mode|structured output|JSON output]|"
        "Can you answer in JSON|Does pyengine support JSON|Can pyengine force JSON]",
        "Set `response_format` in the request to a JSON object or to a JSON schema. The engine "
        "then lets the model write only tokens that keep the answer valid.",
        "`response_format`",
    ),
    (
        f"[{_HOW} [stream|use streaming|stream the answer|stream tokens|get a stream|enable "
        "streaming|see the answer as it is written|stream responses]|"
        f"{_WHAT} [streaming|token streaming|a stream]|Does pyengine stream|Can you stream|"
        "Do you support streaming]",
        "Set `stream` to true in the request. The answer then comes token by token, as "
        "server-sent events.",
        "`stream`",
    ),
    (
        f"[{_WHAT} [CPU overhead|the CPU overhead|host overhead|the overhead of the CPU|overhead]|"
        "Why does CPU overhead matter|Why is CPU overhead bad|Why is the CPU a bottleneck|"
        "How does pyengine reduce CPU overhead|What causes CPU overhead]",
        "CPU overhead is the time in which the GPU waits while the CPU schedules, prepares inputs "
        "and handles outputs. pyengine overlaps this work with the GPU and does it in Rust.",
        "the GPU waits",
    ),
    (
        f"[{_HOW} [use|call|give you|add|define] [tools|functions|a tool|a function|tool calls|"
        f"function calling]|{_WHAT} [tool calling|function calling|a tool call|tool use]|"
        "Can you call tools|Can you use tools|Do you support function calling|"
        "Does pyengine support tools]",
        "List your tools in the `tools` field of the request. If one fits, I answer with its name "
        "and arguments, and you send me the result.",
        "`tools`",
    ),
    (
        f"[{_WHAT} [speculative decoding|a draft model|the draft model|speculation|drafting]|"
        "How does speculative decoding work|Why use a draft model|What is the draft for|"
        "What does the draft model do]",
        "In speculative decoding a small draft model guesses several tokens and the main model "
        "checks them in one step. The answer stays the same but comes faster.",
        "draft model guesses",
    ),
    (
        f"[{_WHAT} [continuous batching|batching|a batch|dynamic batching]|"
        "How does batching work|Why does pyengine batch requests|How are requests batched|"
        "Can you answer many requests at once]",
        "Continuous batching lets new requests join the running batch at every step, so that the "
        "hardware stays busy.",
        "every step",
    ),
    (
        f"[{_WHAT} [the KV cache|a KV cache|KV caching|the cache|prefix caching|paged attention|"
        "a prefix cache]|What does the cache do|Why is there a cache|What is cached|"
        "How does the KV cache work]",
        "The KV cache keeps the keys and values of earlier tokens, so that they need not be "
        "computed again. Requests with the same beginning can share it.",
        "keys and values",
    ),
    (
        f"[{_WHAT} [an actor|the actor model|actors|an actor model]|What are actors|"
        "Why does pyengine use actors|How do actors work|How is pyengine built|"
        "What is the architecture of pyengine|How does pyengine work]",
        "An actor is a small task with a mailbox of its own. pyengine is built from asyncio actors "
        "that send each other messages, so that no state is shared.",
        "mailbox",
    ),
    (
        f"[{_WHAT} [a token|tokens|a tokenizer|the tokenizer|tokenization|BPE]|What are tokens|"
        "How is text split into tokens|What does a tokenizer do|How do tokens work]",
        "A token is a piece of text, often a word or a part of one. The tokenizer turns text into "
        "numbers that the model reads.",
        "piece of text",
    ),
    (
        f"[{_HOW} [serve|load|use|run] [another model|my own model|a different model|a bigger "
        "model|a model from Hugging Face|a local model|other models]|Can pyengine serve other "
        "models|Can I use my own model|Which models does pyengine support|What models can I run]",
        "Give `pyengine serve` the folder of a Hugging Face model. Then it serves that model "
        "instead of me.",
        "Hugging Face",
    ),
    (
        f"[{_HOW} [install|get|set up|download] [pyengine|the engine|PyEngine|this]|"
        "What do I need to install|How is pyengine installed|What is the install command]",
        "Install it with `pip install pyengine`. The demo model comes with the package.",
        "`pip install pyengine`",
    ),
    (
        "[Do you need|Does pyengine need|Do I need|Is there need for] [a GPU|the internet|a "
        "graphics card|a network|a download|internet access|CUDA]|"
        "[Can you|Can pyengine|Do you] [run|work] [offline|on a CPU|on a laptop|without a GPU|"
        "without the internet|on my laptop]",
        "No GPU and no internet are needed for me: I run offline on a laptop CPU. Larger models "
        "run best on a GPU.",
        "offline",
    ),
    (
        "[What is|What's|Explain] [temperature|sampling|greedy decoding|top-p|top-k|the "
        f"temperature|top p]|{_HOW} [set|change|lower|use] the temperature|"
        "What does temperature do|How is the next token chosen|What is a good temperature",
        "The temperature sets how freely the next token is chosen. At 0 the most likely token is "
        "always taken, which suits me best.",
        "next token",
    ),
    (
        "[What is|What's|Tell me|Which is] [your licence|your license|the licence|the license|"
        "the license of pyengine|the licence of this model]|Are you open source|"
        "Is pyengine open source|Can I use you for free|Under which licence are you",
        "pyengine and my weights are under the Apache License 2.0, so you may use and change them "
        "freely.",
        "Apache",
    ),
)


def product(rng: random.Random) -> Exchange:
    """One question about the model or the engine; its wording is held out."""
    pattern, answer, expect = rng.choice((_TOPICS[0], _TOPICS[1], _TOPICS[5], *_TOPICS))
    question = say(rng, f"[{pattern}]")
    statement = question.split()[0] in {
        "Explain", "Tell", "Show", "Define", "Describe", "List", "Introduce", "Say", "I", "Start",
    }  # fmt: skip
    question = dress(rng, question + ("." if statement else "?"))
    turns = (Turn("user", question), Turn("assistant", answer))
    return Exchange("pyengine", question, turns, "contains", expect)
