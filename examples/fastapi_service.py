"""A FastAPI service with an endpoint of its own, and OpenAI's API under /llm.

    pip install fastapi uvicorn
    uvicorn examples.fastapi_service:app

Then ``curl localhost:8000/summary?text=...``, and OpenAI's clients with the base_url
``http://localhost:8000/llm/v1``.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import pyengine

engine = pyengine.AsyncEngine()


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Start the engine with the service, and close it with it."""
    async with engine:
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/llm", pyengine.asgi_app(engine))


@app.get("/summary")
async def summary(text: str) -> dict[str, str]:
    """A summary of a text, by the same engine."""
    answer = await engine.chat([{"role": "user", "content": f"Summarize: {text}"}])
    return {"summary": answer.text}
