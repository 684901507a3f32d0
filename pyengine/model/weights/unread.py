"""Tensors of a folder that a model did not ask for: what may be left, and an error for the others.

A bias, a norm, a shared expert or a second head that stays unread means that config.json was read
otherwise than its author meant it, and every answer would be wrong.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.config_defaults import CLASSIFIER

BUFFERS = re.compile(
    r"(inv_freq|masked_bias|(cos|sin)_cached|rotary_emb\.\w+|(attn|attention)\.bias"
    r"|slope_rate|(query|key|diagonal)_decay|[kvq]_scale|prob_scale|num_batches_tracked|act_fn\.eps)$"
)
"""Tables that are computed anew, of lightning attention, too; scales of caches of another type; an
epsilon of xIELU, 1e-6, below which it is a line."""

OTHER_PARTS = re.compile(
    r"^(model\.|language_model\.)?(vision|visual|audio|image|multi_modal|embed_vision|embed_audio"
    r"|connector|mm_|mlp1|projector|patch_merger|mtp)"
)
"""What stands beside a text part: encoders, what joins them, and heads that draft."""

SCORES = "score.weight"
"""The head of a classifier, which is no part of what the engine computes."""

SHARING = re.compile(r"self_attn\.([kv]_proj|[kv]_norm)\.")
"""Weights that some files have of layers which read the keys and values of others."""


def check_all_read(
    there: Iterable[str],
    asked: Collection[str],
    quantized: Collection[str],
    config: Mapping[str, Any],
    *,
    some: bool = False,
) -> None:
    """Check that a model asked for all tensors of its files, but for those that may be left.

    Args:
        there: The names of all tensors.
        asked: The names that were read or looked for.
        quantized: Layers, and all that belongs to them was at hand as they were read.
        config: The model's config.json.
        some: One asked for of several that differ by a number, such as experts, is enough.

    Raises:
        ModelLoadError: Naming some that were left.
    """
    first = int(config.get("num_hidden_layers") or 0)
    drafting = config.get("num_nextn_predict_layers") or config.get("num_mtp_layers") or 0
    behind = {f".layers.{first + layer}." for layer in range(int(drafting))}
    scored = any(str(name).endswith(CLASSIFIER) for name in config.get("architectures") or ())
    numberless = {_numberless(name) for name in asked} if some else set()
    left = [
        name
        for name in there
        if name not in asked
        and _numberless(name) not in numberless
        and not BUFFERS.search(name)
        and not OTHER_PARTS.match(name)
        and not any(each in name for each in behind)
        and not (config.get("index_topk") and ".indexer." in name)
        and not (scored and name == SCORES)
        and not (config.get("num_kv_shared_layers") and SHARING.search(name))
        and not (name.rpartition(".")[0] in quantized and not name.endswith(".bias"))
    ]
    if left:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        raise ModelLoadError(
            f"the files have tensors that config.json gives no use: {', '.join(sorted(left)[:3])}"
            f"{more}; a key of config.json is missing or wrong, or this kind of model is not "
            "supported"
        )


def _numberless(name: str) -> str:
    return re.sub(r"\d+", "", name)
