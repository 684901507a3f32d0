"""The mixers that keep a state of a sequence, or latents, where attention keeps keys and values: a
file each.

A mixer is data, as all of a family's traits are; it says what its layers keep and makes their
blocks: see :class:`pyengine.model.architectures.mixers.mixer.Mixer`.
"""
