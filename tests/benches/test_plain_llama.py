"""The plain model that the engine is compared with is a Llama: it says what transformers' says."""

import torch

from benches.gpu import plain_llama
from benches.gpu.floors import Shape

SHAPE = Shape(
    layers=2, hidden=64, intermediate=96, heads=4, kv_heads=2, head_dim=16, vocabulary=100
)


def test_tokens_of_transformers() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=SHAPE.vocabulary,
            hidden_size=SHAPE.hidden,
            intermediate_size=SHAPE.intermediate,
            num_hidden_layers=SHAPE.layers,
            num_attention_heads=SHAPE.heads,
            num_key_value_heads=SHAPE.kv_heads,
            head_dim=SHAPE.head_dim,
            rms_norm_eps=plain_llama.EPSILON,
            rope_parameters={"rope_type": "default", "rope_theta": plain_llama.ROPE_BASE},
            initializer_range=0.3,
        )
    ).eval()
    weights = theirs.state_dict()
    cpu = torch.device("cpu")
    ours = plain_llama.made(SHAPE, 3, 12, cpu, torch.float32)
    renamed = {"embedding.weight": weights["model.embed_tokens.weight"]}
    renamed |= {
        "norm.weight": weights["model.norm.weight"],
        "head.weight": weights["lm_head.weight"],
    }
    for layer in range(SHAPE.layers):
        of = {
            name.removeprefix(f"model.layers.{layer}."): weight
            for name, weight in weights.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        qkv = [of[f"self_attn.{name}_proj.weight"] for name in "qkv"]
        renamed |= {
            f"layers.{layer}.attention_norm.weight": of["input_layernorm.weight"],
            f"layers.{layer}.qkv.weight": torch.cat(qkv),
            f"layers.{layer}.output.weight": of["self_attn.o_proj.weight"],
            f"layers.{layer}.mlp_norm.weight": of["post_attention_layernorm.weight"],
            f"layers.{layer}.gate_up.weight": torch.cat(
                (of["mlp.gate_proj.weight"], of["mlp.up_proj.weight"])
            ),
            f"layers.{layer}.down.weight": of["mlp.down_proj.weight"],
        }
    ours.load_state_dict(renamed)
    ids = torch.randint(0, SHAPE.vocabulary, (3, 9))
    with torch.no_grad():
        expected = theirs(ids).logits.argmax(-1)
        angles, places = plain_llama.rope_angles(SHAPE, 12, cpu), torch.arange(12)
        said = [ours(ids[:, at], torch.tensor([at]), angles, places) for at in range(ids.shape[1])]
    assert torch.stack(said, 1).tolist() == expected.tolist()
