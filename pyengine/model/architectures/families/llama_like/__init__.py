"""Families like Llama: RMS norms before the blocks, rotated positions, gated feed-forward layers.

Here belongs a family whose dense models differ from Llama in knobs alone: biases, norms of queries
and keys, multipliers, pairs that are rotated, layers without positions. Its models with experts are
in the same file.
"""
