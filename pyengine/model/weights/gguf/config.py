"""A model's config.json, from the metadata of its GGUF file."""

from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.weights.gguf.file import GgufFile
from pyengine.model.weights.gguf.mixtures import COUNT, MIXTURES, REFUSED, GgufFamily

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

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

ENDS = ("eos", "eot", "eom")
FACTORS = "rope_freqs.weight"


def model_config(file: GgufFile) -> dict[str, Any]:
    """The config.json of the model in ``file``, whose weights it names.

    Raises:
        ModelLoadError: Its architecture, or something about it, is not supported.
    """
    metadata, tensors = file.metadata, file.tensors
    name = str(metadata.get("general.architecture"))
    family = _family(file, name)
    fields = {**FIELDS, **family.fields}
    found = {ours: metadata.get(f"{name}.{theirs}") for ours, theirs in fields.items()}
    if "token_embd.weight" not in tensors:
        raise ModelLoadError(f"{file.path} has no 'token_embd.weight'", param="model")
    ends = [metadata.get(f"tokenizer.ggml.{end}_token_id") for end in ENDS]
    return {
        "architectures": [family.architecture],
        **{key: value for key, value in found.items() if value},
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "attention_bias": name == "llama" and "blk.0.attn_q.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [token for token in ends if token is not None],
        "rope_scaling": _scaling(file, name),
        **_partial(file, name, found),
        **family.known,
        "quantization_config": {"quant_method": "gguf", "file": str(file.path)},
    }


def _family(file: GgufFile, name: str) -> GgufFamily:
    """The family of the architecture ``name``, with experts if the file has some.

    Raises:
        ModelLoadError: It, or something that its metadata asks for, is not supported.
    """
    metadata = file.metadata
    lengths = (None, 0, metadata.get(f"{name}.{KEY_LENGTH}"))
    allowed: dict[str, tuple[Any, ...]] = {"attention.value_length": lengths}
    family = GgufFamily(ARCHITECTURES[name]) if name in ARCHITECTURES else None
    if name in MIXTURES and metadata.get(f"{name}.{COUNT}"):
        family = MIXTURES[name]
        allowed |= REFUSED
    else:
        allowed[COUNT] = (None, 0)
    if family is None:
        known = ", ".join(sorted(ARCHITECTURES | MIXTURES))
        raise ModelLoadError(
            f"architecture {name!r} of {file.path} is not supported; there are: {known}",
            param="model",
        )
    for key, values in allowed.items():
        value = metadata.get(f"{name}.{key}")
        if value not in values:
            raise ModelLoadError(f"{key!r} of {value} in {file.path} is not supported")
    return family


def _partial(file: GgufFile, name: str, found: dict[str, Any]) -> dict[str, float]:
    rotated = file.metadata.get(f"{name}.rope.dimension_count")
    heads, hidden = found["num_attention_heads"], found["hidden_size"]
    if not rotated or not heads or not hidden:
        return {}
    return {"partial_rotary_factor": rotated / (found["head_dim"] or hidden // heads)}


def _scaling(file: GgufFile, name: str) -> dict[str, Any] | None:
    """The scaling of rotary positions, as config.json spells it."""
    if FACTORS in file.tensors:
        entry = file.tensors[FACTORS]
        numbers = entry.type.read(entry.rows[:, None]).dequantized()[0]
        return {"rope_type": "factors", "factors": numbers.tolist()}
    if "rope_factors_long.weight" in file.tensors:
        return {"rope_type": "longrope"}
    values = {
        key: file.metadata.get(f"{name}.rope.scaling.{theirs}")
        for key, theirs in (
            ("rope_type", "type"),
            ("factor", "factor"),
            ("original_max_position_embeddings", "original_context_length"),
            ("attention_factor", "attn_factor"),
        )
    }
    given = {key: value for key, value in values.items() if value}
    if name == "gpt-oss":
        given["truncate"] = False
    return given if given.get("rope_type", "none") != "none" else None
