"""OpenAI's API: one file for each endpoint, their bodies in schema/."""
