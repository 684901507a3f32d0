"""Random adapters in PEFT's format, and the models that they are merged into."""

import copy
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path,
    model: Any,
    rank: int = 8,
    seed: int = 0,
    modules: Sequence[str] = ALL,
    tensors: Mapping[str, Any] | None = None,
    size: float = 0.2,
    **config: Any,
) -> Path:
    """Write an adapter of random weights for ``model``, transformers', to ``folder``.

    Args:
        folder: Is made.
        model: Its linear layers are the adapter's.
        rank: Of all modules.
        seed: Of the weights.
        modules: Last parts of the names of layers that it changes.
        tensors: What its file has besides, or has otherwise.
        size: Of its numbers.
        config: What its configuration says besides, or says otherwise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    weights: dict[str, Any] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name.rpartition(".")[2] in modules:
            outputs, inputs = layer.weight.shape
            for half, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                numbers = generator.standard_normal(shape) * size
                key = f"base_model.model.{name}.lora_{half}.weight"
                weights[key] = numbers.astype(np.float32)
    save_file({**weights, **(tensors or {})}, folder / "adapter_model.safetensors")
    given = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "model",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": list(modules),
    }
    (folder / "adapter_config.json").write_text(json.dumps(given | config))
    return folder


def with_peft(model: Any, folder: Path) -> Any:
    """``model`` wrapped by PEFT with the adapter in ``folder``; the model stays as it was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT calls what transformers gives up
        from peft import PeftModel

        return PeftModel.from_pretrained(copy.deepcopy(model), str(folder)).eval()


def prompt_logprobs(model: Any, tokens: Sequence[int]) -> list[float]:
    """The log-probability of each token of a prompt but the first, by transformers' model."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    scores = torch.log_softmax(logits.float(), -1)
    return [float(scores[at, token]) for at, token in enumerate(tokens[1:])]
