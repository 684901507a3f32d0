"""What architectures need that there is no part for, by their names in config.json.

``docs/MODELS.md`` is made of this, too. Names stand without their endings, such as ``ForCausalLM``.
"""

from difflib import get_close_matches

ENDINGS = (
    "ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForSequenceClassification",
    "ForTokenClassification", "ForQuestionAnswering", "ForMaskedLM", "ModelWithLMHead",
    "ForTextEncoding", "EncoderModel", "Decoder", "TextModel", "Model",
)  # fmt: skip

MISSING: dict[str, frozenset[str]] = {
    "needs other layers with a recurrent state (RWKV, xLSTM)": frozenset(
        {"Qwen4Exp", "RecurrentGemma", "Rwkv", "Zamba", "Zamba2", "xLSTM"}
    ),
    "needs an index of keys, which finds those that a query sees": frozenset(
        {"DeepseekV4", "MistralLarge4"}
    ),
    "needs another latent attention, or experts that compute nothing": frozenset(
        {"AXK1", "AXK2", "Dots3Note", "HYV4", "LongcatFlash"}
    ),
    "needs four hidden states a token": frozenset({"Gemma3n"}),
    "needs values of another width than keys": frozenset({"MiMoV2Flash"}),
    "needs positions that are computed as waves, or added to scores": frozenset(
        {"Bloom", "CTRL", "Mpt", "XGLM"}
    ),
    "is an encoder, or reads one": frozenset(
        """
        Albert Bart Bert BertGeneration BigBird BigBirdPegasus Blenderbot BlenderbotSmall
        Camembert Data2VecText Deberta DebertaV2 DistilBert Electra Ernie EuroBert LongT5
        Longformer MBart MPNet MT5 Marian MegatronBert ModernBert Mvp New NewModel NomicBert
        PLBart Pegasus ProphetNet RemBert RoCBert RoFormer Roberta RobertaPreLayerNorm
        SwitchTransformers T5 T5Gemma TrOCR UMT5 Whisper XLMRoberta XLMRobertaXL XLNet Xmod
        """.split()
    ),
}
"""By what they need, or are, as the end of a sentence."""


def base_of(name: str) -> str:
    """An architecture's name without its ending."""
    return next((name.removesuffix(end) for end in ENDINGS if name.endswith(end)), name)


def reason(name: str) -> str | None:
    """What an architecture needs, or is, that is not supported; None where that is not known."""
    base = base_of(name)
    return next((why for why, names in MISSING.items() if base in names), None)


def refusal(name: str, known: list[str]) -> str:
    """The message that refuses an architecture.

    Args:
        name: As config.json has it.
        known: The names of those that are served.
    """
    why = reason(name)
    begin = f"architecture {name!r} is not supported"
    if why is not None:
        return f"{begin}: it {why}; docs/MODELS.md has what is served"
    heads = [each for each in known if base_of(each) == base_of(name)]
    if heads:
        return f"{begin}: of its family, these are served: {', '.join(heads[:3])}"
    bases = {base_of(each).lower(): each for each in known}
    near = [bases[each] for each in get_close_matches(base_of(name).lower(), bases, 3, 0.7)]
    names = f"; names near it: {', '.join(near)}" if near else ""
    return f"{begin}: there is no part for its layers{names}; docs/MODELS.md has what is served"
