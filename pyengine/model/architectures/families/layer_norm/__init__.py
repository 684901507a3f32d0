"""Families with layer norms, which subtract the mean: GPT-2 and what came of it.

Here belong also their further habits: learned positions, biases, attention and feed-forward layers
side by side, activations without gates, and config.json with names of its own (``n_embd``), for
which a file has a second function.
"""
