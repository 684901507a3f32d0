"""Families whose layers keep a latent of each token in the place of keys and values.

Here belongs what has :mod:`pyengine.model.architectures.mixers.latent_attention`.
"""
