"""Facts about models that no code has: names, templates, reasons of refusals."""

_QWEN = ("hermes", "qwen3")
_MISTRAL = ("mistral", "mistral_tekken", "mistral_args", "magistral")
_LLAMA = ("llama3_json", "llama_pythonic", "hermes", "nemotron")

SERVED: dict[str, tuple[str, tuple[str, ...]]] = {
    "CwmForCausalLM": ("CWM", ()),
    "ExaoneMoeForCausalLM": ("K-EXAONE", ("qwen3",)),
    "Gemma4UnifiedForConditionalGeneration": ("Gemma 4 12B", ("gemma4",)),
    "GraniteSWAForCausalLM": (
        "Granite with sliding windows",
        ("granite", "granite_thinking", "hermes"),
    ),
    "FalconForCausalLM": ("Falcon 7B to 180B without ALiBi, Falcon 2", ()),
    "GPT2LMHeadModel": ("GPT-2, DistilGPT2, DialoGPT", ()),
    "GPTBigCodeForCausalLM": ("StarCoder 1, SantaCoder", ()),
    "GPTJForCausalLM": ("GPT-J 6B", ()),
    "GPTNeoForCausalLM": ("GPT-Neo, TinyStories", ()),
    "HunYuanDenseV1ForCausalLM": ("Hunyuan 0.5B to 7B, Hunyuan-MT", ("hunyuan",)),
    "HunYuanMoEV1ForCausalLM": ("Hunyuan-A13B", ("hunyuan", "hunyuan_json")),
    "OPTForCausalLM": ("OPT but 350M, Galactica", ()),
    "GPTNeoXForCausalLM": ("Pythia, GPT-NeoX, Dolly, RedPajama-INCITE", ()),
    "GraniteMoeHybridForCausalLM": (
        "Granite 4.0 micro, 1B and 350M: those without Mamba layers",
        ("granite", "granite_thinking", "hermes"),
    ),
    "GraniteMoeSWAForCausalLM": (
        "Granite with sliding windows and experts",
        ("granite", "granite_thinking", "hermes"),
    ),
    "GraniteMoeSharedForCausalLM": (
        "Granite with a shared expert",
        ("granite", "granite_thinking", "hermes"),
    ),
    "PhiForCausalLM": ("Phi-1, Phi-1.5, Phi-2", ()),
    "HyperCLOVAXForCausalLM": ("HyperCLOVA X", ()),
    "Idefics3ForConditionalGeneration": ("Idefics 3", ()),
    "InternVLForConditionalGeneration": ("InternVL 3 and 3.5", ("hermes", "qwen3")),
    "Jais2ForCausalLM": ("Jais 2", ()),
    "LlavaForConditionalGeneration": ("LLaVA 1.5, Pixtral", _MISTRAL),
    "LlavaNextForConditionalGeneration": ("LLaVA 1.6", ()),
    "LlavaOnevisionForConditionalGeneration": ("LLaVA-OneVision", ("hermes",)),
    "MellumForCausalLM": ("Mellum 2", ("hermes", "qwen3")),
    "Qwen2VLForConditionalGeneration": ("Qwen2-VL", ("hermes",)),
    "Qwen2_5_VLForConditionalGeneration": ("Qwen2.5-VL", ("hermes",)),
    "SmolVLMForConditionalGeneration": ("SmolVLM 1 and 2", ()),
    "SolarOpenForCausalLM": ("Solar Open 100B", ()),
    "VaultGemmaForCausalLM": ("VaultGemma 1B", ()),
    "VoxtralForConditionalGeneration": ("Voxtral", _MISTRAL),
    "ArceeForCausalLM": ("AFM", ("hermes",)),
    "Cohere2ForCausalLM": ("Command R7B, Command A", ("command",)),
    "CohereForCausalLM": ("Command R, R+, Aya", ()),
    "Dots1ForCausalLM": ("dots.llm1", ()),
    "Ernie4_5ForCausalLM": ("ERNIE 4.5, dense", ()),
    "Ernie4_5_MoeForCausalLM": ("ERNIE 4.5 21B-A3B and 300B-A47B", ()),
    "Exaone4ForCausalLM": ("EXAONE 4", ("qwen3",)),
    "Gemma2ForCausalLM": ("Gemma 2", ()),
    "Gemma3ForCausalLM": ("Gemma 3 270M and 1B", ("gemma_json", "gemma_tool_code")),
    "Gemma3ForConditionalGeneration": (
        "Gemma 3 4B and larger",
        ("gemma_json", "gemma_tool_code"),
    ),
    "Gemma4ForCausalLM": ("Gemma 4", ("gemma4",)),
    "Gemma4ForConditionalGeneration": ("Gemma 4, dense, E2B, E4B and 26B-A4B", ("gemma4",)),
    "GemmaForCausalLM": ("Gemma 1", ()),
    "Glm4ForCausalLM": ("GLM-4-0414", ()),
    "Glm4MoeForCausalLM": ("GLM-4.5 to 4.7", ("glm45",)),
    "GlmForCausalLM": ("GLM-4, GLM-Edge", ()),
    "GptOssForCausalLM": ("gpt-oss 20b and 120b, experts in MXFP4 or dense", ("gpt_oss",)),
    "GraniteForCausalLM": (
        "Granite 3 and 4, dense",
        ("granite", "granite_thinking", "hermes"),
    ),
    "GraniteMoeForCausalLM": (
        "Granite 3 1B-A400M and 3B-A800M",
        ("granite", "granite_thinking", "hermes"),
    ),
    "HeliumForCausalLM": ("Helium 1", ()),
    "Llama4ForCausalLM": ("Llama 4", ("llama4_pythonic",)),
    "Llama4ForConditionalGeneration": ("Llama 4 Scout and Maverick", ("llama4_pythonic",)),
    "LlamaForCausalLM": (
        "Llama 2 and 3, Llama-Nemotron, Falcon 3, SmolLM 1 and 2, Yi and more",
        _LLAMA,
    ),
    "MiniMaxM2ForCausalLM": ("MiniMax-M2", ("minimax_m2",)),
    "Ministral3ForCausalLM": ("Ministral 3", _MISTRAL),
    "MinistralForCausalLM": ("Ministral", _MISTRAL),
    "Mistral3ForConditionalGeneration": ("Mistral Small 3.1 and later, Ministral 3", _MISTRAL),
    "MistralForCausalLM": ("Mistral 7B, Nemo, Small 2 and 3, Magistral", _MISTRAL),
    "MixtralForCausalLM": ("Mixtral 8x7B and 8x22B", _MISTRAL),
    "NemotronForCausalLM": ("Nemotron 3 and 4, Minitron", ()),
    "OlmoForCausalLM": ("OLMo 1", ()),
    "Olmo2ForCausalLM": ("OLMo 2", ()),
    "Olmo3ForCausalLM": ("OLMo 3", ("olmo3", "olmo3_thinking")),
    "OlmoeForCausalLM": ("OLMoE", ()),
    "Phi3ForCausalLM": (
        "Phi-3 of 4k and 128k, Phi-4, Phi-4-mini",
        ("phi4_mini", "phi4_functools"),
    ),
    "Qwen2ForCausalLM": ("Qwen2, Qwen2.5, DeepSeek-R1-Distill-Qwen", ("hermes", "deepseek_r1")),
    "Qwen2MoeForCausalLM": ("Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B", ("hermes",)),
    "Qwen3ForCausalLM": ("Qwen3, dense", _QWEN),
    "Qwen3MoeForCausalLM": (
        "Qwen3-30B-A3B and larger, Qwen3-Coder",
        (*_QWEN, "qwen3_coder", "qwen3_coder_thinking"),
    ),
    "Qwen3VLForConditionalGeneration": ("Qwen3-VL, dense", _QWEN),
    "Qwen3VLMoeForConditionalGeneration": ("Qwen3-VL-30B-A3B and 235B-A22B", _QWEN),
    "SeedOssForCausalLM": ("Seed-OSS 36B", ("seed_oss",)),
    "SmolLM3ForCausalLM": ("SmolLM3", ("qwen3",)),
    "StableLmForCausalLM": ("StableLM 2", ()),
    "Starcoder2ForCausalLM": ("StarCoder2", ()),
}
"""Models of each architecture, and the chat formats that their templates are found to have."""

MISSING: dict[str, frozenset[str]] = {
    "a recurrent state beside the cache (Gated DeltaNet, Mamba, short convolutions)": frozenset(
        """
        BailingHybridForCausalLM BambaForCausalLM FalconH1ForCausalLM FalconMambaForCausalLM
        JambaForCausalLM KimiLinearForCausalLM Lfm2ForCausalLM
        Lfm2MoeForCausalLM Lfm3ForCausalLM Mamba2ForCausalLM MambaForCausalLM MiniMaxForCausalLM
        NemotronHForCausalLM OlmoHybridForCausalLM Qwen3NextForCausalLM Qwen3_5ForCausalLM
        Qwen3_5MoeForCausalLM Qwen4ExpForCausalLM RecurrentGemmaForCausalLM RwkvForCausalLM
        Zamba2ForCausalLM ZambaForCausalLM xLSTMForCausalLM
        """.split()
    ),
    "multi-head latent attention": frozenset(
        """
        AXK1ForCausalLM AXK2ForCausalLM Dots3NoteForCausalLM HYV4ForCausalLM
        DeepseekV2ForCausalLM DeepseekV32ForCausalLM DeepseekV3ForCausalLM DeepseekV4ForCausalLM
        Glm4MoeLiteForCausalLM GlmMoeDsaForCausalLM LongcatFlashForCausalLM MiniCPM3ForCausalLM
        YoutuForCausalLM
        """.split()
    ),
    "four hidden states a token": frozenset(
        """
        Gemma3nForCausalLM Gemma3nForConditionalGeneration
        """.split()
    ),
    "values of another width than keys": frozenset(
        """
        MiMoV2FlashForCausalLM
        """.split()
    ),
    "positions that are computed as waves, or added to scores": frozenset(
        """
        BloomForCausalLM CTRLLMHeadModel MptForCausalLM XGLMForCausalLM
        """.split()
    ),
    "a decoder: these are encoders, or read an encoder": frozenset(
        """
        BartForCausalLM BertGenerationDecoder BertLMHeadModel BigBirdForCausalLM
        BigBirdPegasusForCausalLM BlenderbotForCausalLM BlenderbotSmallForCausalLM
        CamembertForCausalLM Data2VecTextForCausalLM ElectraForCausalLM ErnieForCausalLM
        MBartForCausalLM MarianForCausalLM MegatronBertForCausalLM MvpForCausalLM
        PLBartForCausalLM PegasusForCausalLM ProphetNetForCausalLM RemBertForCausalLM
        RoCBertForCausalLM RoFormerForCausalLM RobertaForCausalLM
        RobertaPreLayerNormForCausalLM TrOCRForCausalLM WhisperForCausalLM
        XLMRobertaForCausalLM XLMRobertaXLForCausalLM XmodForCausalLM
        """.split()
    ),
}
"""What architectures of transformers need that there is no part for."""
