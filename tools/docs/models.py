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
from pyengine.model.architectures.missing import MISSING, base_of
from pyengine.model.architectures.parts import SILU
from pyengine.model.architectures.reading import keys_of_layers
from pyengine.model.architectures.traits import Traits
from pyengine.model.cache_layers import Keys, Latent, State
from pyengine.model.weights.gguf import families as gguf
from tests.model.families import FAMILIES
from tests.model.ggufs import CASES, family_of
from tests.model.hybrids import HYBRIDS, HYBRIDS_WITH_EYES
from tests.model.llamas import SMALL
from tests.model.test_renamed_families import FAMILIES as RENAMED
from tests.model.test_text_part import WITH_EYES
from tools.docs.known_models import SERVED

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

Layers with *latents* ([guides/latents.md](guides/latents.md)) keep one vector of each token,
which the keys and values of all heads are made of: 576 numbers a layer in DeepSeek-V2, whose
keys and values would be 40,960. All tokens are computed in the absorbed form, which makes no
keys and values of latents at all, so that an answer has the same bits whether its prompt was
cached or not. Ranks divide heads and each has all latents. Drafts, prefix hits, embeddings and
quantization are as for other models; a GPU does not compute such layers yet.

Layers with *states* ([guides/states.md](guides/states.md)) are Gated DeltaNet, Kimi Delta
Attention, Mamba, Mamba-2, lightning attention and short convolutions. They are computed on the CPU;
a GPU does not compute them yet.

*Compared* names the small random models with which tests hold a family to transformers: the same
greedy tokens in float32, whole and in chunks, in company and with prefix hits, and logits within
1e-4. Families that together have every part are held to it preempted, with drafts and on two ranks.
*Chat format* is what templates of the family are found to write; which one a model has is found in
its own template.
"""
REFUSED = """## Refused

Text models of transformers {} that are refused by the name of their architecture, and what they
would need; the last ones were not looked at.

| it | architectures |
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
    "xielu": "xIELU",
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
        if found := [name for name in left if base_of(name) in names]:
            made.append(f"| {why} | {_code(found)} |")
            left = [name for name in left if base_of(name) not in names]
    return "\n".join([*made, f"| | {_code(left)} |", ""])


def compared() -> dict[str, list[str]]:
    """The names of the small models that tests compare, by architecture."""
    found: dict[str, list[str]] = {"LlamaForCausalLM": list(LLAMA)}
    for name, (kind, _) in (FAMILIES | HYBRIDS).items():
        found.setdefault(_architecture(kind), []).append(name)
    for name, (architecture, *_) in RENAMED.items():
        found.setdefault(architecture, []).append(name)
    for name, (model, _) in (WITH_EYES | HYBRIDS_WITH_EYES).items():
        found.setdefault(model.__name__, []).append(f"{name}, the text part")
    return found


def gguf_names() -> dict[str, set[str]]:
    """What GGUF calls an architecture, of those whose files are read."""
    found: dict[str, set[str]] = {}
    for name, family in (*gguf.FAMILIES.items(), *gguf.MIXTURES.items()):
        found.setdefault(family.architecture, set()).add(name)
    for name, case in CASES.items():
        kind, _ = family_of(case)
        found.setdefault(_architecture(kind), set()).add(name.partition(",")[0])
    return found


def served() -> str:
    """Families and chat formats that are served."""
    tested, files = compared(), gguf_names()
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
            _code(sorted(files.get(name, ()))),
            "; ".join(tested.get(name, ())),
        )
        made.append(f"| {' | '.join(cells)} |")
    return "\n".join([HEAD, *made, "", _formats()])


def _features(name: str) -> list[str]:
    """Differences of an architecture's small models from Llama."""
    found: dict[str, None] = {}
    family = ARCHITECTURES[name]
    for kind, own in (FAMILIES | HYBRIDS).values():
        if ARCHITECTURES[_architecture(kind)] == family:  # so has the text part of another
            found |= dict.fromkeys(parts_of_model(kind, own))
    return list(found)


def parts_of_model(kind: Any, own: dict[str, Any]) -> list[str]:
    """The parts that a small model has and Llama does not, in words."""
    family = ARCHITECTURES[_architecture(kind)]
    assert isinstance(family, Family)
    config = family.respelled(kind(**(SMALL | own)).to_dict())
    return list(_parts(config, family.traits(config)))


def _parts(config: Mapping[str, Any], traits: Traits) -> Iterator[str]:
    """The parts of a model that Llama does not have, in words."""
    names, mixture = traits.names, traits.mixture
    layers = traits.layers or keys_of_layers(config)
    keys = [layer for layer in layers if isinstance(layer, Keys)]
    scales = (traits.embedding_scale, traits.branch_scale, traits.logits_scale)
    rotary = [each for each in traits.rotary if each is not None]
    words = {
        "sliding windows": any(each.window for each in keys)
        and not any(each.chunked for each in keys),
        "attention in chunks": any(each.chunked for each in keys),
        "temperatures of scores": any(traits.temperatures),
        "heads by kind of layer": len({each.head_dim for each in keys}) > 1,
        "keys and values of other layers": any(each.reads is not None for each in keys),
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
        "states": any(isinstance(layer, State) for layer in layers),
        "latents": any(isinstance(layer, Latent) for layer in layers),
        "gates of attention's output": traits.attention_gates is not None,
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
