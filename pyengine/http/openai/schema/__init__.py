"""OpenAI's request and response types, as far as pyengine speaks them."""
