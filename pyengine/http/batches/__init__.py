"""Batches: many requests in a file, answered when there is room."""
