"""Ollama's API, as far as its clients and user interfaces need it to chat."""
