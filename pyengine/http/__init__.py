"""The OpenAI-compatible endpoint: granian RSGI and msgspec."""
