"""The model architectures there are, by their names in config.json.

A package outside adds one by an entry point of the group ``pyengine.architectures``: its name is
that in config.json, its value a :data:`Build`, mostly made by
:func:`pyengine.model.architectures.decoder.decoder`.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.decoder import Family, decoder
from pyengine.model.architectures.families.hybrids.bamba import (
    bamba,
    bamba_config,
    granite_h,
    granite_hybrid_config,
)
from pyengine.model.architectures.families.hybrids.falcon_h1 import (
    falcon_h1,
    falcon_h1_config,
)
from pyengine.model.architectures.families.hybrids.kimi_linear import (
    kimi_linear,
    kimi_linear_config,
)
from pyengine.model.architectures.families.hybrids.lfm2 import (
    lfm2,
    lfm2_config,
    lfm2_moe,
    lfm2_moe_config,
    lfm3,
    lfm3_config,
)
from pyengine.model.architectures.families.hybrids.mamba2 import (
    mamba2,
    mamba2_config,
    nemotron_h,
    nemotron_h_config,
)
from pyengine.model.architectures.families.hybrids.minimax import minimax, minimax_config
from pyengine.model.architectures.families.hybrids.olmo_hybrid import (
    olmo_hybrid,
    olmo_hybrid_config,
)
from pyengine.model.architectures.families.hybrids.qwen3_next import (
    qwen3_5,
    qwen3_5_config,
    qwen3_5_moe,
    qwen3_5_moe_config,
    qwen3_next,
    qwen3_next_config,
)
from pyengine.model.architectures.families.latents.deepseek import (
    deepseek_v2,
    deepseek_v3,
    glm4_moe_lite,
    youtu,
)
from pyengine.model.architectures.families.latents.minicpm3 import minicpm3
from pyengine.model.architectures.families.latents.mistral4 import mistral3, mistral4
from pyengine.model.architectures.families.layer_norm.biogpt import biogpt, biogpt_config
from pyengine.model.architectures.families.layer_norm.cohere import (
    cohere,
    cohere2,
    cohere2_moe,
    cohere2_moe_config,
)
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
    granite_moe,
    granite_moe_shared,
    granite_moe_swa,
    granite_swa,
    hyperclovax,
)
from pyengine.model.architectures.families.llama_like.hunyuan import hunyuan, hunyuan_moe
from pyengine.model.architectures.families.llama_like.llama import cwm, llama
from pyengine.model.architectures.families.llama_like.mistral import ministral3, mistral
from pyengine.model.architectures.families.llama_like.nanochat import nanochat
from pyengine.model.architectures.families.llama_like.phi3 import phi3
from pyengine.model.architectures.families.llama_like.qwen2 import qwen2, qwen2_moe
from pyengine.model.architectures.families.llama_like.qwen3 import (
    mellum,
    qwen3,
    qwen3_moe,
    qwen3_vl_moe,
)
from pyengine.model.architectures.families.llama_like.renamed import (
    exaone,
    exaone_config,
    internlm2,
    internlm3_config,
    mimo,
    minicpm,
    orion,
)
from pyengine.model.architectures.families.llama_like.seed_oss import seed_oss
from pyengine.model.architectures.families.llama_like.smollm3 import smollm3
from pyengine.model.architectures.families.mixtures.afmoe import afmoe, afmoe_config
from pyengine.model.architectures.families.mixtures.aria import aria_text
from pyengine.model.architectures.families.mixtures.dots1 import dots1
from pyengine.model.architectures.families.mixtures.flint import flint, flint_config
from pyengine.model.architectures.families.mixtures.gpt_oss import gpt_oss
from pyengine.model.architectures.families.mixtures.hy_v3 import hy_v3
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
from pyengine.model.architectures.families.norms_behind.olmo import (
    flex_olmo,
    olmo,
    olmo2,
    olmo3,
    olmoe,
)
from pyengine.model.architectures.missing import refusal
from pyengine.model.architectures.parts import Parts, Step
from pyengine.model.architectures.traits import Traits
from pyengine.model.config_defaults import architecture_of
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


def _text_family(config: Mapping[str, Any]) -> Family:
    """The family of the text part of a model that also sees or hears: LLaVA, InternVL, Voxtral.

    Raises:
        ModelLoadError: It is not supported.
    """
    build = find_architecture(architecture_of({"model_type": config.get("model_type")}))
    assert isinstance(build, Family)  # those of the table of defaults are
    return build


TEXT_PART = decoder(
    lambda config: _text_family(config).traits(config),
    lambda config: _text_family(config).respelled(config),
)
"""An architecture whose text part is of any family: ``text_config`` says of which."""

ARCHITECTURES: dict[str, Build] = {
    "AfmoeForCausalLM": decoder(afmoe, afmoe_config),
    "ArceeForCausalLM": decoder(arcee),
    "AriaTextForCausalLM": decoder(aria_text),
    "BambaForCausalLM": decoder(bamba, bamba_config),
    "BioGptForCausalLM": decoder(biogpt, biogpt_config),
    "Cohere2ForCausalLM": decoder(cohere2),
    "Cohere2MoeForCausalLM": decoder(cohere2_moe, cohere2_moe_config),
    "CohereForCausalLM": decoder(cohere),
    "CwmForCausalLM": decoder(cwm),
    "DeepseekV2ForCausalLM": decoder(deepseek_v2),
    "DeepseekV3ForCausalLM": decoder(deepseek_v3),
    "Dots1ForCausalLM": decoder(dots1),
    "Ernie4_5ForCausalLM": decoder(ernie4_5),
    "Ernie4_5_MoeForCausalLM": decoder(ernie4_5_moe),
    "Exaone4ForCausalLM": decoder(exaone4),
    "ExaoneForCausalLM": decoder(exaone, exaone_config),
    "ExaoneMoeForCausalLM": decoder(exaone_moe),
    "FalconForCausalLM": decoder(falcon, falcon_config),
    "FalconH1ForCausalLM": decoder(falcon_h1, falcon_h1_config),
    "FlexOlmoForCausalLM": decoder(flex_olmo),
    "FlintForCausalLM": decoder(flint, flint_config),
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
    "Gemma4UnifiedForCausalLM": decoder(gemma4_unified),
    "Gemma4UnifiedForConditionalGeneration": decoder(gemma4_unified),
    "GemmaForCausalLM": decoder(gemma),
    "Glm4ForCausalLM": decoder(glm4),
    "Glm4MoeForCausalLM": decoder(glm4_moe),
    "Glm4MoeLiteForCausalLM": decoder(glm4_moe_lite),
    "GlmForCausalLM": decoder(glm),
    "GptOssForCausalLM": decoder(gpt_oss),
    "GraniteForCausalLM": decoder(granite),
    "GraniteMoeForCausalLM": decoder(granite_moe),
    "GraniteMoeHybridForCausalLM": decoder(granite_h, granite_hybrid_config),
    "GraniteMoeSWAForCausalLM": decoder(granite_moe_swa),
    "GraniteMoeSharedForCausalLM": decoder(granite_moe_shared),
    "GraniteSWAForCausalLM": decoder(granite_swa),
    "HYV3ForCausalLM": decoder(hy_v3),
    "HeliumForCausalLM": decoder(helium),
    "HunYuanDenseV1ForCausalLM": decoder(hunyuan),
    "HunYuanMoEV1ForCausalLM": decoder(hunyuan_moe),
    "HyperCLOVAXForCausalLM": decoder(hyperclovax),
    "IQuestCoderForCausalLM": decoder(llama),
    "Idefics3ForConditionalGeneration": TEXT_PART,
    "InternLM2ForCausalLM": decoder(internlm2),
    "InternLM3ForCausalLM": decoder(llama, internlm3_config),
    "InternVLForConditionalGeneration": TEXT_PART,
    "Jais2ForCausalLM": decoder(jais2),
    "Kimi_K25ForConditionalGeneration": decoder(deepseek_v3),
    "KimiLinearForCausalLM": decoder(kimi_linear, kimi_linear_config),
    "Lfm2ForCausalLM": decoder(lfm2, lfm2_config),
    "Lfm2MoeForCausalLM": decoder(lfm2_moe, lfm2_moe_config),
    "Lfm3ForCausalLM": decoder(lfm3, lfm3_config),
    "Llama4ForCausalLM": decoder(llama4),
    "Llama4ForConditionalGeneration": decoder(llama4),
    "LlamaForCausalLM": decoder(llama),
    "LlavaForConditionalGeneration": TEXT_PART,
    "LlavaNextForConditionalGeneration": TEXT_PART,
    "LlavaOnevisionForConditionalGeneration": TEXT_PART,
    "Mamba2ForCausalLM": decoder(mamba2, mamba2_config),
    "MellumForCausalLM": decoder(mellum),
    "MiMoForCausalLM": decoder(mimo),
    "MiniCPM3ForCausalLM": decoder(minicpm3),
    "MiniCPMForCausalLM": decoder(minicpm),
    "MiniMaxForCausalLM": decoder(minimax, minimax_config),
    "MiniMaxM2ForCausalLM": decoder(minimax_m2),
    "Ministral3ForCausalLM": decoder(ministral3),
    "MinistralForCausalLM": decoder(mistral),
    "Mistral3ForConditionalGeneration": decoder(mistral3),
    "Mistral4ForCausalLM": decoder(mistral4),
    "MistralForCausalLM": decoder(mistral),
    "MixtralForCausalLM": decoder(mixtral),
    "NanoChatForCausalLM": decoder(nanochat),
    "NemotronForCausalLM": decoder(nemotron),
    "NemotronHForCausalLM": decoder(nemotron_h, nemotron_h_config),
    "OPTForCausalLM": decoder(opt, opt_config),
    "Olmo2ForCausalLM": decoder(olmo2),
    "Olmo3ForCausalLM": decoder(olmo3),
    "OlmoForCausalLM": decoder(olmo),
    "OlmoHybridForCausalLM": decoder(olmo_hybrid, olmo_hybrid_config),
    "OlmoeForCausalLM": decoder(olmoe),
    "OrionForCausalLM": decoder(orion),
    "Phi3ForCausalLM": decoder(phi3),
    "PhiForCausalLM": decoder(phi),
    "Qwen2ForCausalLM": decoder(qwen2),
    "Qwen2MoeForCausalLM": decoder(qwen2_moe),
    "Qwen2VLForConditionalGeneration": decoder(qwen2),
    "Qwen2_5_VLForConditionalGeneration": decoder(qwen2),
    "Qwen3ForCausalLM": decoder(qwen3),
    "Qwen3MoeForCausalLM": decoder(qwen3_moe),
    "Qwen3NextForCausalLM": decoder(qwen3_next, qwen3_next_config),
    "Qwen3VLForConditionalGeneration": decoder(qwen3),
    "Qwen3VLMoeForConditionalGeneration": decoder(qwen3_vl_moe),
    "Qwen3_5ForCausalLM": decoder(qwen3_5, qwen3_5_config),
    "Qwen3_5ForConditionalGeneration": decoder(qwen3_5, qwen3_5_config),
    "Qwen3_5MoeForCausalLM": decoder(qwen3_5_moe, qwen3_5_moe_config),
    "Qwen3_5MoeForConditionalGeneration": decoder(qwen3_5_moe, qwen3_5_moe_config),
    "SeedOssForCausalLM": decoder(seed_oss),
    "SmolLM3ForCausalLM": decoder(smollm3),
    "SmolVLMForConditionalGeneration": TEXT_PART,
    "SolarOpenForCausalLM": decoder(solar_open),
    "StableLmForCausalLM": decoder(stablelm),
    "Starcoder2ForCausalLM": decoder(starcoder2),
    "VaultGemmaForCausalLM": decoder(vaultgemma),
    "VoxtralForConditionalGeneration": TEXT_PART,
    "XverseForCausalLM": decoder(llama),
    "YoutuForCausalLM": decoder(youtu),
}

OTHER_NAMES = {"KimiK25ForConditionalGeneration": "Kimi_K25ForConditionalGeneration"}
"""Names in files whose authors call an architecture otherwise than transformers."""


def find_architecture(name: str) -> Build:
    """The architecture called ``name``: one of these, or that of an installed package.

    Raises:
        ModelLoadError: There is none of that name, or its package cannot be imported.
    """
    names = [OTHER_NAMES.get(name, name)]
    if name.endswith("Model"):
        # A body that was saved without its head, as models that give vectors are.
        body = name.removesuffix("Model")
        names += [f"{body}ForCausalLM", f"{body}LMHeadModel"]
    for whole in names:
        if whole in ARCHITECTURES:
            return ARCHITECTURES[whole]
    outside = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name not in outside:
        raise ModelLoadError(refusal(name, sorted(ARCHITECTURES.keys() | outside.keys())))
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
