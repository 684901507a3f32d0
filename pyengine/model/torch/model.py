"""A model on a torch device: its weights, KV cache, buffers and attention."""

import torch

from pyengine._core import StepLayout, step_numbers
from pyengine.model.adapters.peft import AdapterFile
from pyengine.model.architectures import Architecture, find_architecture
from pyengine.model.spec import ModelSpec
from pyengine.model.torch.attention.backend import AttentionBackend
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.layers.parts import TorchParts
from pyengine.model.weights.sharding import Weights

_NUM_TOKENS = step_numbers()["num_tokens"]


class TorchModel:
    """Computes steps that are on the device and for which ``backend.plan`` was called.

    It allocates nothing on the way, and always works on the same memory. One thread at a time.

    Attributes:
        num_parameters: The number of parameters of the whole model.
        weight_bytes: The bytes of this rank's weights, as the device holds them.
        backend: Attends.
        expert_layers: The experts of each layer that has some, by its number.
        rows_per_call: The most rows of :meth:`logits`.
        adapters: The adapters of the model.
        pool: The memory of its keys, values and states.
    """

    def __init__(
        self, spec: ModelSpec, layout: StepLayout, parts: TorchParts, weights: Weights
    ) -> None:
        """Load the weights and make the cache.

        Args:
            spec: The model and its cache.
            layout: The layout of the steps.
            parts: The parts of the device, made for ``layout``.
            weights: The weights of the parts' rank.

        Raises:
            ModelLoadError: The model cannot be loaded; says why.
            ConfigError: It cannot be divided among the ranks.
        """
        fields = layout.fields()
        if fields["token_ids"][2] > parts.max_tokens or fields["logit_row"][2] > parts.max_sampled:
            raise ValueError("the parts are made for smaller steps than the layout has")
        build = find_architecture(spec.info.architecture)
        # Not in inference mode: others write to its buffers too.
        with torch.no_grad():
            self._model: Architecture = build(spec.info, spec.config, weights, parts)
            parts.loaded()
        self.num_parameters = weights.num_parameters
        self.weight_bytes = parts.transfer.nbytes
        self.backend: AttentionBackend = parts.backend
        self.expert_layers = parts.expert_layers
        self.adapters = parts.adapters
        self._live = parts.live
        self.pool = parts.pool(spec.info)
        self.rows_per_call = len(self._model.logits_rows.tensor)

    def forward(self, step: DeviceStep, tokens: int) -> None:
        """Compute the first ``tokens`` tokens, and store their keys and values."""
        self.adapters.step = step.host
        with torch.inference_mode():
            self._live.copy_(step.header[_NUM_TOKENS:][:1])
            self._model.forward(step, tokens)

    def logits(self, step: DeviceStep, rows: int, first: int = 0) -> torch.Tensor:
        """Logits after the tokens ``logit_token[first : first + rows]`` of the forward pass.

        Returns [rows, vocab_size] in the model's data type: the same memory every call.
        """
        with torch.inference_mode():
            self._model.logits(step, rows, first)
        logits: torch.Tensor = self._model.logits_rows.tensor[:rows]
        return logits

    def prompt_logits(self, step: DeviceStep, rows: int, first: int = 0) -> torch.Tensor:
        """As :meth:`logits`, after the tokens ``prompt_token[first : first + rows]``."""
        with torch.inference_mode():
            self._model.prompt_logits(step, rows, first)
        logits: torch.Tensor = self._model.logits_rows.tensor[:rows]
        return logits

    def states(self, step: DeviceStep, rows: int, first: int = 0) -> torch.Tensor:
        """Last hidden states of ``pool_token[first : first + rows]`` of the forward pass.

        Returns [rows, hidden_size] in the model's data type: the same memory every call.
        """
        with torch.inference_mode():
            self._model.states(step, rows, first)
        states: torch.Tensor = self._model.states_rows.tensor[:rows]
        return states

    def set_adapter(self, slot: int, adapter: AdapterFile | None) -> int:
        """See :meth:`pyengine.model.runner.ModelRunner.set_adapter`."""
        return self.adapters.set(slot, adapter)

    def resize_cache(self, num_blocks: int) -> None:
        """Replace the cache by an empty one of ``num_blocks`` blocks."""
        self.pool.resize(num_blocks)
