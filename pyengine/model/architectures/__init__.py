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
from pyengine.model.architectures.families.hybrids import (
    bailing,
    bamba,
    falcon_h1,
    kimi_linear,
    lfm2,
    mamba,
    mamba2,
    minimax,
    olmo_hybrid,
    qwen3_next,
)
from pyengine.model.architectures.families.latents import deepseek, minicpm3, mistral4
from pyengine.model.architectures.families.layer_norm import (
    biogpt,
    cohere,
    falcon,
    gpt2,
    gpt_neox,
    nemotron,
    opt,
    phi,
    stablelm,
    starcoder2,
)
from pyengine.model.architectures.families.llama_like import (
    apertus,
    deci,
    ernie4_5,
    granite,
    hunyuan,
    llama,
    mistral,
    nanochat,
    phi3,
    qwen2,
    qwen3,
    renamed,
    seed_oss,
    smollm3,
)
from pyengine.model.architectures.families.mixtures import (
    afmoe,
    aria,
    bailing_moe,
    dots1,
    flint,
    gpt_oss,
    hy_v3,
    llama4,
    minimax_m2,
    mixtral,
)
from pyengine.model.architectures.families.norms_behind import exaone4, gemma, gemma4, glm, olmo
from pyengine.model.architectures.missing import refusal
from pyengine.model.architectures.parts import Parts, Step
from pyengine.model.architectures.traits import Traits
from pyengine.model.config_defaults import CLASSIFIER, architecture_of
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
    "AfmoeForCausalLM": decoder(afmoe.afmoe, afmoe.afmoe_config),
    "ApertusForCausalLM": decoder(apertus.apertus),
    "ArceeForCausalLM": decoder(nemotron.arcee),
    "AriaTextForCausalLM": decoder(aria.aria_text),
    "BailingHybridForCausalLM": decoder(bailing.bailing_hybrid, bailing.bailing_hybrid_config),
    "BailingMoeForCausalLM": decoder(bailing_moe.bailing_moe, bailing_moe.bailing_moe_config),
    "BailingMoeV2ForCausalLM": decoder(bailing_moe.bailing_moe, bailing_moe.bailing_moe_config),
    "BambaForCausalLM": decoder(bamba.bamba, bamba.bamba_config),
    "BioGptForCausalLM": decoder(biogpt.biogpt, biogpt.biogpt_config),
    "Cohere2ForCausalLM": decoder(cohere.cohere2),
    "Cohere2MoeForCausalLM": decoder(cohere.cohere2_moe, cohere.cohere2_moe_config),
    "CohereForCausalLM": decoder(cohere.cohere),
    "CwmForCausalLM": decoder(llama.cwm),
    "DeciLMForCausalLM": decoder(deci.deci),
    "DeepseekV2ForCausalLM": decoder(deepseek.deepseek_v2),
    "DeepseekV3ForCausalLM": decoder(deepseek.deepseek_v3),
    "DeepseekV32ForCausalLM": decoder(deepseek.deepseek_v32),
    "Dots1ForCausalLM": decoder(dots1.dots1),
    "Ernie4_5ForCausalLM": decoder(ernie4_5.ernie4_5),
    "Ernie4_5_MoeForCausalLM": decoder(ernie4_5.ernie4_5_moe),
    "Exaone4ForCausalLM": decoder(exaone4.exaone4),
    "ExaoneForCausalLM": decoder(renamed.exaone, renamed.exaone_config),
    "ExaoneMoeForCausalLM": decoder(exaone4.exaone_moe),
    "FalconForCausalLM": decoder(falcon.falcon, falcon.falcon_config),
    "FalconH1ForCausalLM": decoder(falcon_h1.falcon_h1, falcon_h1.falcon_h1_config),
    "FalconMambaForCausalLM": decoder(mamba.falcon_mamba, mamba2.mamba2_config),
    "FlexOlmoForCausalLM": decoder(olmo.flex_olmo),
    "FlintForCausalLM": decoder(flint.flint, flint.flint_config),
    "GPT2LMHeadModel": decoder(gpt2.gpt2, gpt2.gpt2_config),
    "GPTBigCodeForCausalLM": decoder(gpt2.gpt_bigcode, gpt2.gpt2_config),
    "GPTJForCausalLM": decoder(gpt2.gptj, gpt2.gpt2_config),
    "GPTNeoForCausalLM": decoder(gpt2.gpt_neo, gpt2.gpt_neo_config),
    "GPTNeoXForCausalLM": decoder(gpt_neox.gpt_neox, gpt_neox.gpt_neox_config),
    "Gemma2ForCausalLM": decoder(gemma.gemma2),
    "Gemma3ForCausalLM": decoder(gemma.gemma3),
    "Gemma3ForConditionalGeneration": decoder(gemma.gemma3),
    "Gemma4ForCausalLM": decoder(gemma4.gemma4),
    "Gemma4ForConditionalGeneration": decoder(gemma4.gemma4),
    "Gemma4UnifiedForCausalLM": decoder(gemma4.gemma4_unified),
    "Gemma4UnifiedForConditionalGeneration": decoder(gemma4.gemma4_unified),
    "GemmaForCausalLM": decoder(gemma.gemma),
    "Glm4ForCausalLM": decoder(glm.glm4),
    "Glm4MoeForCausalLM": decoder(glm.glm4_moe),
    "Glm4MoeLiteForCausalLM": decoder(deepseek.glm4_moe_lite),
    "GlmMoeDsaForCausalLM": decoder(deepseek.deepseek_v32),
    "GlmForCausalLM": decoder(glm.glm),
    "GptOssForCausalLM": decoder(gpt_oss.gpt_oss),
    "GraniteForCausalLM": decoder(granite.granite),
    "GraniteMoeForCausalLM": decoder(granite.granite_moe),
    "GraniteMoeHybridForCausalLM": decoder(bamba.granite_h, bamba.granite_hybrid_config),
    "GraniteMoeSWAForCausalLM": decoder(granite.granite_moe_swa),
    "GraniteMoeSharedForCausalLM": decoder(granite.granite_moe_shared),
    "GraniteSWAForCausalLM": decoder(granite.granite_swa),
    "HYV3ForCausalLM": decoder(hy_v3.hy_v3),
    "HeliumForCausalLM": decoder(ernie4_5.helium),
    "HunYuanDenseV1ForCausalLM": decoder(hunyuan.hunyuan),
    "HunYuanMoEV1ForCausalLM": decoder(hunyuan.hunyuan_moe),
    "HyperCLOVAXForCausalLM": decoder(granite.hyperclovax),
    "IQuestCoderForCausalLM": decoder(llama.llama),
    "Idefics3ForConditionalGeneration": TEXT_PART,
    "InternLM2ForCausalLM": decoder(renamed.internlm2),
    "InternLM3ForCausalLM": decoder(llama.llama, renamed.internlm3_config),
    "InternVLForConditionalGeneration": TEXT_PART,
    "Jais2ForCausalLM": decoder(nemotron.jais2),
    "JambaForCausalLM": decoder(mamba.jamba, mamba.jamba_config),
    "Kimi_K25ForConditionalGeneration": decoder(deepseek.deepseek_v3),
    "KimiLinearForCausalLM": decoder(kimi_linear.kimi_linear, kimi_linear.kimi_linear_config),
    "Lfm2ForCausalLM": decoder(lfm2.lfm2, lfm2.lfm2_config),
    "Lfm2MoeForCausalLM": decoder(lfm2.lfm2_moe, lfm2.lfm2_moe_config),
    "Lfm3ForCausalLM": decoder(lfm2.lfm3, lfm2.lfm3_config),
    "Llama4ForCausalLM": decoder(llama4.llama4),
    "Llama4ForConditionalGeneration": decoder(llama4.llama4),
    "LlamaForCausalLM": decoder(llama.llama),
    "LlavaForConditionalGeneration": TEXT_PART,
    "LlavaNextForConditionalGeneration": TEXT_PART,
    "LlavaOnevisionForConditionalGeneration": TEXT_PART,
    "MambaForCausalLM": decoder(mamba.mamba, mamba2.mamba2_config),
    "Mamba2ForCausalLM": decoder(mamba2.mamba2, mamba2.mamba2_config),
    "MellumForCausalLM": decoder(qwen3.mellum),
    "MiMoForCausalLM": decoder(renamed.mimo),
    "MiniCPM3ForCausalLM": decoder(minicpm3.minicpm3),
    "MiniCPMForCausalLM": decoder(renamed.minicpm),
    "MiniMaxForCausalLM": decoder(minimax.minimax, minimax.minimax_config),
    "MiniMaxM2ForCausalLM": decoder(minimax_m2.minimax_m2),
    "Ministral3ForCausalLM": decoder(mistral.ministral3),
    "MinistralForCausalLM": decoder(mistral.mistral),
    "Mistral3ForConditionalGeneration": decoder(mistral4.mistral3),
    "Mistral4ForCausalLM": decoder(mistral4.mistral4),
    "MistralForCausalLM": decoder(mistral.mistral),
    "MixtralForCausalLM": decoder(mixtral.mixtral),
    "NanoChatForCausalLM": decoder(nanochat.nanochat),
    "NemotronForCausalLM": decoder(nemotron.nemotron),
    "NemotronHForCausalLM": decoder(mamba2.nemotron_h, mamba2.nemotron_h_config),
    "OPTForCausalLM": decoder(opt.opt, opt.opt_config),
    "Olmo2ForCausalLM": decoder(olmo.olmo2),
    "Olmo3ForCausalLM": decoder(olmo.olmo3),
    "OlmoForCausalLM": decoder(olmo.olmo),
    "OlmoHybridForCausalLM": decoder(olmo_hybrid.olmo_hybrid, olmo_hybrid.olmo_hybrid_config),
    "OlmoeForCausalLM": decoder(olmo.olmoe),
    "OrionForCausalLM": decoder(renamed.orion),
    "Phi3ForCausalLM": decoder(phi3.phi3),
    "PhiForCausalLM": decoder(phi.phi),
    "Qwen2ForCausalLM": decoder(qwen2.qwen2),
    "Qwen2MoeForCausalLM": decoder(qwen2.qwen2_moe),
    "Qwen2VLForConditionalGeneration": decoder(qwen2.qwen2),
    "Qwen2_5_VLForConditionalGeneration": decoder(qwen2.qwen2),
    "Qwen3ForCausalLM": decoder(qwen3.qwen3),
    "Qwen3MoeForCausalLM": decoder(qwen3.qwen3_moe),
    "Qwen3NextForCausalLM": decoder(qwen3_next.qwen3_next, qwen3_next.with_kinds),
    "Qwen3VLForConditionalGeneration": decoder(qwen3.qwen3),
    "Qwen3VLMoeForConditionalGeneration": decoder(qwen3.qwen3_vl_moe),
    "Qwen3_5ForCausalLM": decoder(qwen3_next.qwen3_5, qwen3_next.with_kinds),
    "Qwen3_5ForConditionalGeneration": decoder(qwen3_next.qwen3_5, qwen3_next.with_kinds),
    "Qwen3_5MoeForCausalLM": decoder(qwen3_next.qwen3_5_moe, qwen3_next.with_kinds),
    "Qwen3_5MoeForConditionalGeneration": decoder(qwen3_next.qwen3_5_moe, qwen3_next.with_kinds),
    "SeedOssForCausalLM": decoder(seed_oss.seed_oss),
    "SmolLM3ForCausalLM": decoder(smollm3.smollm3),
    "SmolVLMForConditionalGeneration": TEXT_PART,
    "SolarOpenForCausalLM": decoder(glm.solar_open),
    "StableLmForCausalLM": decoder(stablelm.stablelm),
    "Starcoder2ForCausalLM": decoder(starcoder2.starcoder2),
    "VaultGemmaForCausalLM": decoder(gemma.vaultgemma),
    "VoxtralForConditionalGeneration": TEXT_PART,
    "XverseForCausalLM": decoder(llama.llama),
    "YoutuForCausalLM": decoder(deepseek.youtu),
}

OTHER_NAMES = {"KimiK25ForConditionalGeneration": "Kimi_K25ForConditionalGeneration"}
"""Names in files whose authors call an architecture otherwise than transformers."""


def find_architecture(name: str) -> Build:
    """The architecture called ``name``: one of these, or that of an installed package.

    Raises:
        ModelLoadError: There is none of that name, or its package cannot be imported.
    """
    names = [OTHER_NAMES.get(name, name)]
    if name.endswith(("Model", CLASSIFIER)):
        # A body that was saved without its head, as models that give vectors are, or with another.
        body = name.removesuffix("Model").removesuffix(CLASSIFIER)
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
