"""The engine as an async library.

::

    AsyncEngine (engine.py), whose start and end are in life.py
      chat, generate, embed ──► prompts.py ──► requests.py ──► request.connection ──► the engine
      chat.completions.create ──► endpoints.py ──► pyengine.library
"""

from pyengine.async_engine.engine import AsyncEngine

__all__ = ["AsyncEngine"]
