"""LlamaIndex, through its OpenAI classes: an answer that streams, and the vector of a text.

Needs ``pip install llama-index-llms-openai-like llama-index-embeddings-openai`` (in an environment
of its own: today they need ``openai`` below 3), and a server::

    pyengine serve &
    python examples/llama_index_chat.py --url http://127.0.0.1:8000/v1
"""

import argparse

from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai_like import OpenAILike


def main() -> None:
    """Ask for a capital, and embed a text."""
    parser = argparse.ArgumentParser(description="LlamaIndex with pyengine behind it.")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="pyengine-demo")
    given = parser.parse_args()

    # The class for endpoints in OpenAI's form whose models it has no table of.
    model = OpenAILike(
        model=given.model,
        api_base=given.url,
        api_key="none",
        is_chat_model=True,
        temperature=0,
        max_tokens=30,
    )
    question = ChatMessage(role="user", content="What is the capital of France?")
    for chunk in model.stream_chat([question]):
        print(chunk.delta, end="", flush=True)
    print()

    vectors = OpenAIEmbedding(model_name=given.model, api_base=given.url, api_key="none")
    print("vector:", len(vectors.get_text_embedding("the capital of France")))


if __name__ == "__main__":
    main()
