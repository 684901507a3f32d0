"""The model architectures there are, by their names in config.json.

A package outside adds one by an entry point of the group ``pyengine.architectures``: its name is
that in config.json, its value a :data:`Build`, mostly made by
:func:`pyengine.model.architectures.decoder.decoder`.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.decoder import Family, decoder
from pyengine.model.architectures.families.composite import composite
from pyengine.model.architectures.families.layer_norm.cohere import cohere, cohere2
from pyengine.model.architectures.families.layer_norm.falcon import falcon, falcon_config
from pyengine.model.architectures.families.layer_norm.gpt2 import (
    gpt2,
    gpt2_config,
    gpt_bigcode,
    gpt_neo,
    gpt_neo_config,
    gptj,
)
from pyengine.model.architectures.families.layer_norm.gpt_neox import gpt_neox, gpt_neox_config
from pyengine.model.architectures.families.layer_norm.nemotron import arcee, jais2, nemotron
from pyengine.model.architectures.families.layer_norm.opt import opt, opt_config
from pyengine.model.architectures.families.layer_norm.phi import phi
from pyengine.model.architectures.families.layer_norm.stablelm import stablelm
from pyengine.model.architectures.families.layer_norm.starcoder2 import starcoder2
from pyengine.model.architectures.families.llama_like.ernie4_5 import ernie4_5, ernie4_5_moe, helium
from pyengine.model.architectures.families.llama_like.granite import (
    granite,
    granite_hybrid,
    granite_hybrid_config,
    granite_moe,
    granite_moe_shared,
    granite_moe_swa,
    granite_swa,
    hyperclovax,
)
from pyengine.model.architectures.families.llama_like.hunyuan import hunyuan, hunyuan_moe
from pyengine.model.architectures.families.llama_like.llama import cwm, llama
from pyengine.model.architectures.families.llama_like.mistral import ministral3, mistral
from pyengine.model.architectures.families.llama_like.phi3 import phi3
from pyengine.model.architectures.families.llama_like.qwen2 import qwen2, qwen2_moe
from pyengine.model.architectures.families.llama_like.qwen3 import (
    mellum,
    qwen3,
    qwen3_moe,
    qwen3_vl_moe,
)
from pyengine.model.architectures.families.llama_like.seed_oss import seed_oss
from pyengine.model.architectures.families.llama_like.smollm3 import smollm3
from pyengine.model.architectures.families.mixtures.dots1 import dots1
from pyengine.model.architectures.families.mixtures.gpt_oss import gpt_oss
from pyengine.model.architectures.families.mixtures.llama4 import llama4
from pyengine.model.architectures.families.mixtures.minimax import minimax_m2
from pyengine.model.architectures.families.mixtures.mixtral import mixtral
from pyengine.model.architectures.families.norms_behind.exaone4 import exaone4, exaone_moe
from pyengine.model.architectures.families.norms_behind.gemma import (
    gemma,
    gemma2,
    gemma3,
    vaultgemma,
)
from pyengine.model.architectures.families.norms_behind.gemma4 import gemma4, gemma4_unified
from pyengine.model.architectures.families.norms_behind.glm import glm, glm4, glm4_moe, solar_open
from pyengine.model.architectures.families.norms_behind.olmo import olmo, olmo2, olmo3, olmoe
from pyengine.model.architectures.parts import Buffer, Parts, Step
from pyengine.model.architectures.traits import Traits
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.sharding import Weights

ENTRY_POINTS = "pyengine.architectures"


class Architecture(Protocol):
    """A model with its weights, and the buffers of its steps."""

    @property
    def logits_rows(self) -> Buffer:
        """Memory that ``logits`` writes to; its rows are the most that one call takes."""

    @property
    def states_rows(self) -> Buffer:
        """Memory that ``states`` writes to, likewise."""

    def forward(self, step: Step, tokens: int) -> None:
        """Compute the first ``tokens`` tokens of a step, and store their keys and values."""

    def logits(self, step: Step, rows: int, first: int = 0) -> None:
        """Logits after the tokens ``logit_token[first : first + rows]``, in ``logits_rows``."""

    def prompt_logits(self, step: Step, rows: int, first: int = 0) -> None:
        """Logits after the tokens ``prompt_token[first : first + rows]``, in ``logits_rows``."""

    def states(self, step: Step, rows: int, first: int = 0) -> None:
        """Last hidden states of ``pool_token[first : first + rows]``, in ``states_rows``."""


Build = Callable[[ModelInfo, Mapping[str, Any], Weights, Parts], Architecture]

ARCHITECTURES: dict[str, Build] = {
    "ArceeForCausalLM": decoder(arcee),
    "Cohere2ForCausalLM": decoder(cohere2),
    "CohereForCausalLM": decoder(cohere),
    "CwmForCausalLM": decoder(cwm),
    "Dots1ForCausalLM": decoder(dots1),
    "Ernie4_5ForCausalLM": decoder(ernie4_5),
    "Ernie4_5_MoeForCausalLM": decoder(ernie4_5_moe),
    "Exaone4ForCausalLM": decoder(exaone4),
    "ExaoneMoeForCausalLM": decoder(exaone_moe),
    "FalconForCausalLM": decoder(falcon, falcon_config),
    "GPT2LMHeadModel": decoder(gpt2, gpt2_config),
    "GPTBigCodeForCausalLM": decoder(gpt_bigcode, gpt2_config),
    "GPTJForCausalLM": decoder(gptj, gpt2_config),
    "GPTNeoForCausalLM": decoder(gpt_neo, gpt_neo_config),
    "GPTNeoXForCausalLM": decoder(gpt_neox, gpt_neox_config),
    "Gemma2ForCausalLM": decoder(gemma2),
    "Gemma3ForCausalLM": decoder(gemma3),
    "Gemma3ForConditionalGeneration": decoder(gemma3),
    "Gemma4ForCausalLM": decoder(gemma4),
    "Gemma4ForConditionalGeneration": decoder(gemma4),
    "Gemma4UnifiedForConditionalGeneration": decoder(gemma4_unified),
    "GemmaForCausalLM": decoder(gemma),
    "Glm4ForCausalLM": decoder(glm4),
    "Glm4MoeForCausalLM": decoder(glm4_moe),
    "GlmForCausalLM": decoder(glm),
    "GptOssForCausalLM": decoder(gpt_oss),
    "GraniteForCausalLM": decoder(granite),
    "GraniteMoeForCausalLM": decoder(granite_moe),
    "GraniteMoeHybridForCausalLM": decoder(granite_hybrid, granite_hybrid_config),
    "GraniteMoeSWAForCausalLM": decoder(granite_moe_swa),
    "GraniteMoeSharedForCausalLM": decoder(granite_moe_shared),
    "GraniteSWAForCausalLM": decoder(granite_swa),
    "HeliumForCausalLM": decoder(helium),
    "HunYuanDenseV1ForCausalLM": decoder(hunyuan),
    "HunYuanMoEV1ForCausalLM": decoder(hunyuan_moe),
    "HyperCLOVAXForCausalLM": decoder(hyperclovax),
    "Idefics3ForConditionalGeneration": decoder(composite),
    "InternVLForConditionalGeneration": decoder(composite),
    "Jais2ForCausalLM": decoder(jais2),
    "Llama4ForCausalLM": decoder(llama4),
    "Llama4ForConditionalGeneration": decoder(llama4),
    "LlamaForCausalLM": decoder(llama),
    "LlavaForConditionalGeneration": decoder(composite),
    "LlavaNextForConditionalGeneration": decoder(composite),
    "LlavaOnevisionForConditionalGeneration": decoder(composite),
    "MellumForCausalLM": decoder(mellum),
    "MiniMaxM2ForCausalLM": decoder(minimax_m2),
    "Ministral3ForCausalLM": decoder(ministral3),
    "MinistralForCausalLM": decoder(mistral),
    "Mistral3ForConditionalGeneration": decoder(ministral3),
    "MistralForCausalLM": decoder(mistral),
    "MixtralForCausalLM": decoder(mixtral),
    "NemotronForCausalLM": decoder(nemotron),
    "OPTForCausalLM": decoder(opt, opt_config),
    "OlmoForCausalLM": decoder(olmo),
    "Olmo2ForCausalLM": decoder(olmo2),
    "Olmo3ForCausalLM": decoder(olmo3),
    "OlmoeForCausalLM": decoder(olmoe),
    "Phi3ForCausalLM": decoder(phi3),
    "PhiForCausalLM": decoder(phi),
    "Qwen2ForCausalLM": decoder(qwen2),
    "Qwen2MoeForCausalLM": decoder(qwen2_moe),
    "Qwen2VLForConditionalGeneration": decoder(qwen2),
    "Qwen2_5_VLForConditionalGeneration": decoder(qwen2),
    "Qwen3ForCausalLM": decoder(qwen3),
    "Qwen3MoeForCausalLM": decoder(qwen3_moe),
    "Qwen3VLForConditionalGeneration": decoder(qwen3),
    "Qwen3VLMoeForConditionalGeneration": decoder(qwen3_vl_moe),
    "SeedOssForCausalLM": decoder(seed_oss),
    "SmolLM3ForCausalLM": decoder(smollm3),
    "SmolVLMForConditionalGeneration": decoder(composite),
    "SolarOpenForCausalLM": decoder(solar_open),
    "StableLmForCausalLM": decoder(stablelm),
    "Starcoder2ForCausalLM": decoder(starcoder2),
    "VaultGemmaForCausalLM": decoder(vaultgemma),
    "VoxtralForConditionalGeneration": decoder(composite),
}


def find_architecture(name: str) -> Build:
    """The architecture called ``name``: one of these, or that of an installed package.

    Raises:
        ModelLoadError: There is none of that name, or its package cannot be imported.
    """
    names = [name]
    if name.endswith("Model"):
        # A body that was saved without its head, as models that give vectors are.
        body = name.removesuffix("Model")
        names += [f"{body}ForCausalLM", f"{body}LMHeadModel"]
    for whole in names:
        if whole in ARCHITECTURES:
            return ARCHITECTURES[whole]
    outside = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name not in outside:
        known = ", ".join(sorted(ARCHITECTURES.keys() | outside.keys()))
        raise ModelLoadError(f"architecture {name!r} is not supported; there are: {known}")
    try:
        loaded: Build = outside[name].load()
    except Exception as error:  # a stranger's code
        raise ModelLoadError(
            f"architecture {name!r} of the package {outside[name].value!r} cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    return loaded


def respelled(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """A model's config.json in the names that most families have.

    Args:
        name: The architecture's; of an unknown one, all stays.
        config: The model's config.json.

    Raises:
        ModelLoadError: config.json lacks something, or it is of no use.
    """
    family = _family(name)
    return dict(config) if family is None else family.respelled(config)


def traits_of(name: str, config: Mapping[str, Any]) -> Traits | None:
    """The traits of a model; None where its architecture is unknown, or no decoder.

    Args:
        name: The architecture's.
        config: The model's config.json.

    Raises:
        ModelLoadError: config.json asks for what is not supported.
    """
    family = _family(name)
    return None if family is None else family.traits(config)


def _family(name: str) -> Family | None:
    try:
        build = find_architecture(name)
    except ModelLoadError:
        # Refused when the model is loaded; a simulated device loads none.
        return None
    return build if isinstance(build, Family) else None
