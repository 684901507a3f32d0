"""Answers in parts: what is written together, kept alive and padded."""
