"""Random models in Hugging Face format, made here, for parity with transformers."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB_SIZE = 300


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer of 256 bytes and a few special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([f"<|special_{i}|>" for i in range(VOCAB_SIZE - 256)])
    tokenizer.save(str(folder / "tokenizer.json"))


def random_llama(folder: Path, seed: int = 0, **overrides: Any) -> LlamaForCausalLM:
    """Write a random Llama in f32 with its tokenizer to ``folder``; returns transformers' model.

    Initialised wide, so that logits are far apart and greedy ties do not happen.
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
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, bos_token_id=None, eos_token_id=VOCAB_SIZE - 1, **shape | overrides
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def greedy(model: LlamaForCausalLM, prompt: list[int], count: int) -> list[int]:
    """What transformers generates greedily, ``count`` tokens, past any end-of-sequence."""
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return output[0, len(prompt) :].tolist()
