"""Families whose layers mostly keep a state of a sequence in the place of keys and values.

Here belongs what has one of :mod:`pyengine.model.architectures.mixers`, beside attention or alone.
"""
