"""Every change of a config.json is read as transformers reads it, or refused."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from pyengine.errors import PyengineError
from tests.model.families import FAMILIES, families
from tests.model.hybrids import HYBRIDS
from tests.model.llamas import make_model, make_runner, prompts
from tests.model.mutations import mutations
from tests.model.test_torch_model import logits_after

PROMPT = (prompts(1)[0] * 5)[:60]


def theirs(folder: Path) -> torch.Tensor | None:
    """Logits of transformers after the prompt; None: it cannot load all of the folder."""
    # Whatever a configuration that fits nothing makes of torch.
    with suppress(Exception), torch.inference_mode():
        auto: Any = AutoModelForCausalLM
        model, info = auto.from_pretrained(folder, output_loading_info=True)
        if info["missing_keys"] or info["mismatched_keys"] or info["error_msgs"]:
            return None
        logits: torch.Tensor = model.eval()(torch.tensor([PROMPT]), use_cache=False).logits
        return logits[0, -1].float()
    return None


def ours(folder: Path) -> torch.Tensor | None:
    """Logits of the engine; None: it refuses the folder."""
    try:
        runner = make_runner(folder, num_blocks=3000)
        if runner.info.max_context < len(PROMPT):
            return None  # and so the prompt
    except PyengineError:
        return None
    return logits_after(runner, PROMPT, 1000)


def wrong(folder: Path, changed: dict[str, Any]) -> str | None:
    """How the engine reads a config.json otherwise than transformers; None: it does not."""
    (folder / "config.json").write_text(json.dumps(changed))
    found = ours(folder)
    if found is None:
        return None
    expected = theirs(folder)
    if expected is None or not torch.isfinite(expected).all():
        return None
    if found.shape != expected.shape:
        return f"logits have shape {tuple(found.shape)}, not {tuple(expected.shape)}"
    apart = float((found - expected).abs().max() / expected.std())
    return None if apart < 1e-2 else f"logits are {apart:.2g} deviations apart"


HYBRID = [pytest.param(name, marks=pytest.mark.slow) for name in HYBRIDS]
KNOWN = {
    # Null is left out here; transformers takes it as false.
    "kimi linear": {"moe_renormalize: null"},
    "ling 3": {"moe_renormalize: null"},
    # transformers reads a kind without a type as one that is not there.
    "lfm3": {"rope_parameters"},
}
"""Changes that no file has, and that are read otherwise."""


@pytest.mark.parametrize("name", [*families(), *HYBRID])
def test_every_change_of_config_is_honoured_or_refused(name: str, tmp_path: Path) -> None:
    logging.set_verbosity_error()
    kind, own = (FAMILIES | HYBRIDS)[name]
    make_model(tmp_path, kind, **own)
    config = json.loads((tmp_path / "config.json").read_text())
    found = {change: wrong(tmp_path, changed) for change, changed in mutations(config)}
    apart = {change: how for change, how in found.items() if how}
    assert {each: apart[each] for each in apart if not known(name, each)} == {}


def known(name: str, change: str) -> bool:
    return any(change.startswith(each) for each in KNOWN.get(name, ()))
