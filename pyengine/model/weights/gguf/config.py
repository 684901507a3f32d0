"""A model's config.json, from the metadata of its GGUF file."""

from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.weights.gguf.ends import end_token_ids
from pyengine.model.weights.gguf.families import COUNT, FAMILIES, MIXTURES
from pyengine.model.weights.gguf.family import Facts, GgufFamily
from pyengine.model.weights.gguf.file import GgufFile

KEY_LENGTH = "attention.key_length"
FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": KEY_LENGTH,
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
}
"""Names in config.json, and behind the architecture's in metadata."""

FACTORS = "rope_freqs.weight"
SCALING = {
    "rope_type": "type",
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "attention_factor": "attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


UNREAD = {
    COUNT: (None, 0),
    "attention.clamp_kqv": (None, 0.0),
    "expert_group_count": (None, 0, 1),
    "expert_weights_scale": (None, 0.0, 1.0),
    "interleave_moe_layer_step": (None, 0, 1),
    "leading_dense_block_count": (None, 0),
}
"""What only some families may have, and the values that mean that there is none."""


def model_config(file: GgufFile) -> dict[str, Any]:
    """The config.json of the model in ``file``, whose weights it names.

    Raises:
        ModelLoadError: Its architecture, or something about it, is not supported.
    """
    metadata, tensors = file.metadata, file.tensors
    facts, family = family_of(file)
    fields = {**FIELDS, **family.fields}
    found = {ours: facts.number(theirs) for ours, theirs in fields.items()}
    if "token_embd.weight" not in tensors:
        raise ModelLoadError(f"{file.path} has no 'token_embd.weight'", param="model")
    try:
        more = family.more(facts)
    except (TypeError, KeyError, ValueError) as error:
        raise ModelLoadError(
            f"{file.path} lacks metadata that files of {facts.name!r} have", param="model"
        ) from error
    return {
        "architectures": [family.architecture],
        **{key: value for key, value in found.items() if value},
        "num_hidden_layers": facts.layers,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_token_ids(metadata),
        "rope_scaling": _scaling(file, facts),
        **_partial(facts),
        **{key: facts.has(tensor) for key, tensor in family.flags.items()},
        **family.known,
        **more,
        "quantization_config": {"quant_method": "gguf", "file": str(file.path)},
    }


def family_of(file: GgufFile) -> tuple[Facts, GgufFamily]:
    """What a file says, and the family of its architecture, with experts if the file has some.

    Raises:
        ModelLoadError: It, or something that its metadata asks for, is not supported.
    """
    name, factors = str(file.metadata.get("general.architecture")), file.tensors.get(FACTORS)
    read = () if factors is None else factors.part().dequantized().reshape(-1).tolist()
    facts = Facts(name, file.metadata, file.tensors, read)
    family = (MIXTURES if facts.get(COUNT) else FAMILIES).get(facts.name)
    if family is None:
        known = ", ".join(sorted(FAMILIES | MIXTURES))
        raise ModelLoadError(
            f"architecture {facts.name!r} of {file.path} is not supported; there are: {known}",
            param="model",
        )
    allowed = {key: values for key, values in UNREAD.items() if key not in family.fields.values()}
    if family in MIXTURES.values():
        allowed.pop(COUNT, None)
    if not family.values:
        allowed["attention.value_length"] = (None, 0, facts.get(KEY_LENGTH))
    for key, values in allowed.items():
        if facts.get(key) not in values:
            raise ModelLoadError(f"{key!r} of {facts.get(key)} in {file.path} is not supported")
    return facts, family


def _partial(facts: Facts) -> dict[str, float]:
    rotated = facts.get("rope.dimension_count")
    if not rotated or not facts.number("attention.head_count"):
        return {}
    return {"partial_rotary_factor": rotated / facts.head_dim}


def _scaling(file: GgufFile, facts: Facts) -> dict[str, Any] | None:
    """The scaling of rotary positions, as config.json spells it."""
    if facts.rotary_factors:
        return {"rope_type": "factors", "factors": facts.rotary_factors}
    if "rope_factors_long.weight" in file.tensors:
        return {"rope_type": "longrope"}
    values = {key: facts.get(f"rope.scaling.{theirs}") for key, theirs in SCALING.items()}
    given = {key: value for key, value in values.items() if value}
    if facts.name == "gpt-oss":
        given["truncate"] = False
    return given if given.get("rope_type", "none") != "none" else None
