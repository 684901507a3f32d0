"""OpenAI's API: a file for each endpoint, a folder for each family, their bodies in schema/."""
