"""Attention over the pages of the KV cache."""
