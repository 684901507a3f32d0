"""LangChain, through its OpenAI classes: a chain that streams, and vectors of documents.

Needs ``pip install langchain-openai``, and a server::

    pyengine serve &
    python examples/langchain_chat.py --url http://127.0.0.1:8000/v1
"""

import argparse

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAIEmbeddings


def main() -> None:
    """Ask for a capital, and embed two texts."""
    parser = argparse.ArgumentParser(description="LangChain with pyengine behind it.")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="pyengine-demo")
    given = parser.parse_args()

    server = {"base_url": given.url, "api_key": "none", "model": given.model}
    prompt = ChatPromptTemplate.from_messages([("user", "What is the capital of {country}?")])
    chain = prompt | ChatOpenAI(temperature=0, max_completion_tokens=30, **server)
    for chunk in chain.stream({"country": "France"}):
        print(chunk.content, end="", flush=True)
    print()

    # Token ids are made by the server: tiktoken knows OpenAI's models only.
    vectors = OpenAIEmbeddings(check_embedding_ctx_length=False, **server)
    one, other = vectors.embed_documents(["the capital of France", "a capital of France"])
    print("vectors:", len(one), len(other))


if __name__ == "__main__":
    main()
