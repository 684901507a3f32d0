"""Paged attention by FlashInfer: its wrappers, what they are planned from, and their memory."""
