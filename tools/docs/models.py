"""``docs/MODELS.md``: the families that are served, made of the registry and of the configurations
that tests compare with transformers, and those of transformers that are not. ``python -m
tools.docs.models`` writes it; a test holds the two together.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from pyengine.chat.formats import FORMATS
from pyengine.model.architectures import ARCHITECTURES
from pyengine.model.architectures.decoder import Family
from pyengine.model.architectures.parts import SILU
from pyengine.model.architectures.traits import Traits
from pyengine.model.weights.gguf.config import ARCHITECTURES as GGUF
from pyengine.model.weights.gguf.mixtures import MIXTURES
from pyengine.model.windows import layer_windows
from tests.model.families import FAMILIES
from tests.model.llamas import SMALL
from tests.model.test_text_part import WITH_EYES
from tools.docs.known_models import MISSING, SERVED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "MODELS.md"
HEAD = """# Models

<!-- Made by `python -m tools.docs.models`; a test holds it to the code. -->

A model is a folder in Hugging Face format with safetensors, a GGUF file, or a name on the hub,
whose `architectures` in config.json is one of these. A package of your own adds one by an entry
point `pyengine.architectures` ([CONTRIBUTING.md](../CONTRIBUTING.md)).

Every family runs on the CPU in float32 and bfloat16, and with torch in float32, bfloat16 and
float16; with `tensor_parallel`, as a draft model, with dummy weights; from folders that are dense
or [quantized](guides/quantized.md), and with `--quantization int8` or `int4`. Of models that also
see or hear, the text part is served, and images are refused where a request brings them.

Rotary scalings are `linear`, `llama3`, `yarn`, `longrope` and `dynamic` (whose scaling begins where
the context ends). With `longrope` a sequence has the short factors up to the length of training and
the long ones beyond, as in transformers; one that grows beyond is computed again once. With `yarn`
the context is `factor` times `original_max_position_embeddings`, if that is more than
`max_position_embeddings`. Layers with a sliding window keep the window alone in the cache.

*Compared* names the small random models with which tests hold a family to transformers: the same
greedy tokens in float32, whole and in chunks, with prefix hits, preempted, with drafts and on two
ranks, and logits within 1e-4. *Chat format* is what templates of the family are found to write;
which one a model has is found in its own template.
"""
REFUSED = """## Refused

Text models of transformers {} that are refused by the name of their architecture, and what they
would need; the last ones were not looked at.

| what is missing | architectures |
|---|---|"""
FORMATS_HEAD = """## Chat formats

`--chat-format` names one where the template does not tell. Reasoning comes apart from the text in
those that have marks for it.

| name | reasoning | marks |
|---|---|---|"""
ACTIVATIONS = {
    "gelu": "GELU",
    "gelu_tanh": "GELU",
    "relu": "ReLU",
    "relu2": "squared ReLU",
    "clamped_swiglu": "clamped SwiGLU",
}
LLAMA = ("llama",)  # the family that tests/model/test_llama.py compares


def page() -> str:
    """The page."""
    return f"{served()}\n{refused()}"


def refused() -> str:
    """Architectures of this version of transformers that are refused."""
    version = ".".join(transformers.__version__.split(".")[:2])
    made = [REFUSED.format(version)]
    left = sorted(set(_of_transformers()) - ARCHITECTURES.keys())
    for why, names in MISSING.items():
        if found := [name for name in left if name in names]:
            made.append(f"| {why} | {_code(found)} |")
            left = [name for name in left if name not in names]
    return "\n".join([*made, f"| | {_code(left)} |", ""])


def compared() -> dict[str, list[str]]:
    """The names of the small models that tests compare, by architecture."""
    found: dict[str, list[str]] = {"LlamaForCausalLM": list(LLAMA)}
    for name, (kind, _) in FAMILIES.items():
        found.setdefault(_architecture(kind), []).append(name)
    for name, (model, _) in WITH_EYES.items():
        found.setdefault(model.__name__, []).append(f"{name}, the text part")
    return found


def served() -> str:
    """Families and chat formats that are served."""
    tested, gguf = compared(), {name: theirs for theirs, name in GGUF.items()}
    gguf |= {family.architecture: theirs for theirs, family in MIXTURES.items()}
    made = [
        "## Served\n",
        "| `architectures` | models | what is on | chat format | GGUF | compared |\n"
        "|---|---|---|---|---|---|",
    ]
    for name in sorted(ARCHITECTURES):
        models, formats = SERVED.get(name, ("", ()))
        cells = (
            f"`{name}`",
            models,
            ", ".join(_features(name)),
            _code(formats),
            f"`{gguf[name]}`" if name in gguf else "",
            "; ".join(tested.get(name, ())),
        )
        made.append(f"| {' | '.join(cells)} |")
    return "\n".join([HEAD, *made, "", _formats()])


def _features(name: str) -> list[str]:
    """Differences of an architecture's small models from Llama."""
    found: dict[str, None] = {}
    family = ARCHITECTURES[name]
    assert isinstance(family, Family)
    for kind, own in FAMILIES.values():
        if ARCHITECTURES[_architecture(kind)] == family:  # so has the text part of another
            config = family.respelled(kind(**(SMALL | own)).to_dict())
            found |= dict.fromkeys(_parts(config, family.traits(config)))
    return list(found)


def _parts(config: Mapping[str, Any], traits: Traits) -> Iterator[str]:
    """The parts of a model that Llama does not have, in words."""
    names, mixture = traits.names, traits.mixture
    windows = traits.windows or layer_windows(config, config["num_hidden_layers"])
    scales = (traits.embedding_scale, traits.branch_scale, traits.logits_scale)
    rotary = [each for each in traits.rotary if each is not None]
    words = {
        "sliding windows": any(windows) and not any(traits.chunks),
        "attention in chunks": any(traits.chunks),
        "temperatures of scores": any(traits.temperatures),
        "heads by kind of layer": len({layer.head_dim for layer in traits.heads}) > 1,
        "keys and values of other layers": any(heads.reads is not None for heads in traits.heads),
        "values that are keys": bool(traits.keys_are_values),
        "inputs of layers": traits.inputs is not None,
        "layers without positions": None in traits.rotary,
        "positions by kind of layer": any(each != rotary[0] for each in rotary),
        "parts of heads rotated": any(each.get("partial_rotary_factor", 1) < 1 for each in rotary),
        "neighbours rotated": traits.interleaved,
        "soft caps": traits.attention_cap is not None or traits.logits_cap is not None,
        "norms of heads": traits.qk_norm == "head",
        "norms of all queries as one": traits.qk_norm == "all",
        "norms after": names.after_attention is not None and names.before_attention is None,
        "norms on both sides": None not in (names.after_attention, names.before_attention),
        "layer norms": traits.layer_norm,
        "parallel blocks": traits.parallel,
        "multipliers": any(scale != 1.0 for scale in scales),
        "biases": traits.qkv_bias or traits.out_bias or traits.mlp_bias,
        "no gates": not traits.gated,
        "experts": mixture is not None,
        "a shared expert": mixture is not None and mixture.shared is not None,
        "experts by sigmoid": mixture is not None and mixture.routing.sigmoid,
        "attention sinks": names.sinks is not None,
        ACTIVATIONS.get(traits.activation.kind, traits.activation.kind): traits.activation != SILU,
    }
    yield from (word for word, holds in words.items() if holds)


def _formats() -> str:
    made = [FORMATS_HEAD]
    for name, form in FORMATS.items():
        reasoning = getattr(form.layout, "reasoning", True)
        told = [mark for mark in sorted(form.layout.markers) if len(mark) > 2 and "`" not in mark]
        marks = _code(mark.replace("|", "\\|") for mark in told)
        made.append(f"| `{name}` | {'yes' if reasoning is not None else ''} | {marks} |")
    return "\n".join([*made, ""])


def _of_transformers() -> Iterator[str]:
    for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        yield from (names,) if isinstance(names, str) else names


def _architecture(kind: Any) -> str:
    """The architecture of a configuration's class."""
    name: str = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind.model_type]
    return name


def _code(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
