"""What a step on a torch device makes of hidden states, and the block that brings it to the host.

Here belong sampled tokens, log-probabilities of prompts, and pooled vectors, a kind a file.
"""
