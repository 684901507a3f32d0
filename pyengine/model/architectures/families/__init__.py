"""The families of models, one file each: what sets a family's models apart from Llama's.

A file has a function from config.json to :class:`pyengine.model.architectures.traits.Traits` for
each architecture of its family; :data:`pyengine.model.architectures.ARCHITECTURES` names them all.
A family is in the folder of what a reader should know of its layers first:

============================ ==================================================================
:mod:`.llama_like`           RMS norms before blocks, rotated positions, gates; some with experts
:mod:`.mixtures`             experts in place of feed-forward layers, always
:mod:`.norms_behind`         norms behind the blocks, alone or besides those before them
:mod:`.layer_norm`           layer norms, from GPT-2 on: biases, blocks side by side, no gates
============================ ==================================================================

A family that fits two folders is where its first models fit: Qwen3 is like Llama, though some of
its models have experts.
"""
