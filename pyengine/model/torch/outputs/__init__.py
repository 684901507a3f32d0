"""Outputs of a step on a torch device, and the block that brings them to the host.

Here belong sampled tokens, log-probabilities of prompts, and pooled vectors, a kind a file.
"""
