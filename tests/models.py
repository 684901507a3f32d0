"""Random models in Hugging Face format, made here, for parity with transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig

VOCAB_SIZE = 300


def write_tokenizer(folder: Path, vocab_size: int = VOCAB_SIZE) -> None:
    """A byte-level tokenizer of 256 bytes and a few special tokens; of a few letters, if small."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if vocab_size < len(alphabet):
        alphabet = [chr(ord("a") + at) for at in range(vocab_size - 1)]
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([f"<|special_{i}|>" for i in range(vocab_size - len(alphabet))])
    tokenizer.save(str(folder / "tokenizer.json"))


def random_llama(folder: Path, seed: int = 0, **overrides: Any) -> Any:
    """As :func:`random_model`, a Llama."""
    return random_model(folder, LlamaConfig, seed, **overrides)


def random_model(
    folder: Path, kind: Any, seed: int = 0, vocab_size: int = VOCAB_SIZE, **overrides: Any
) -> Any:
    """Write a random model in f32 with its tokenizer to ``folder``; returns transformers' model.

    ``kind`` is a configuration of transformers. Initialised wide, so that logits are far apart and
    greedy ties do not happen.
    """
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
    }
    ends = {"bos_token_id": None, "eos_token_id": vocab_size - 1, "pad_token_id": None}
    config = kind(vocab_size=vocab_size, **ends | shape | overrides)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        # What is initialised as zeros and ones would hide what is left out.
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name and kind is not LlamaConfig
            if name.endswith("bias") or is_norm:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    write_tokenizer(folder, vocab_size)
    return model


def greedy(model: Any, prompts: list[list[int]], count: int) -> list[list[int]]:
    """What transformers answers to each prompt, greedily, ``count`` tokens past any end.

    Prompts of one length run as one batch, so that nothing has to be padded.
    """
    answers: dict[int, list[int]] = {}
    for length in {len(prompt) for prompt in prompts}:
        rows = [index for index, prompt in enumerate(prompts) if len(prompt) == length]
        batch = _greedy(model, [prompts[row] for row in rows], count)
        answers.update(zip(rows, batch, strict=True))
    return [answers[index] for index in range(len(prompts))]


@torch.inference_mode()
def _greedy(model: Any, prompts: list[list[int]], count: int) -> list[list[int]]:
    tokens, cache, chosen = torch.tensor(prompts), None, []
    for _ in range(count):
        output = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        tokens = output.logits[:, -1].argmax(-1, keepdim=True)  # [rows, 1]
        chosen.append(tokens)
    return torch.cat(chosen, dim=1).tolist()


def mixed_prompts() -> list[list[int]]:
    """Short ones and long ones, some of which begin alike."""
    draws = np.random.default_rng(0)
    prefix = draws.integers(0, 256, 50).tolist()
    lengths = (1, 5, 16, 17, 40, 90) * 2
    return [
        (prefix if index % 3 == 0 else []) + draws.integers(0, 256, length).tolist()
        for index, length in enumerate(lengths)
    ]
