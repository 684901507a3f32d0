"""Plans by FlashInfer's compiled planner, behind a wrapper's first plan.

All but the arrays is the same in every plan of a wrapper, and yet its ``plan`` resolves types,
backend and module anew, looks at what it was given, and copies the arrays one by one. Its module's
``plan`` alone divides the work::

    wrapper.plan    types, checks │ copy, copy, copy │ module.plan │ attributes for run    (first)
    NativePlan      one copy │ module.plan │ attributes for run                            (others)

What the module is called with, and which attributes ``run`` reads, are FlashInfer's own (0.7.2) and
may change. So the first plan is made both ways: only where they agree are the others made here.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch

from pyengine.model.torch.attention.flashinfer.arrays import PlanArrays
from pyengine.model.torch.attention.flashinfer.memory import Memory, Scores

logger = logging.getLogger("pyengine")


class NativePlan:
    """The plans of one wrapper behind its first. One thread at a time.

    The module waits for nothing; what it writes lies in pinned memory of the wrapper's, which it
    copies to the device asynchronously. It takes O(rows), without Python.
    """

    def __init__(
        self,
        wrapper: Any,
        memory: Memory,
        scores: Scores,
        arrays: PlanArrays,
        *,
        causal: bool | None,
    ) -> None:
        """Of a wrapper that has planned.

        Args:
            wrapper: FlashInfer's.
            memory: Of all wrappers.
            scores: The kind of layers.
            arrays: Of the wrapper's plans.
            causal: As the wrapper's first plan was, of any number of queries; None: of one.

        Raises:
            AttributeError: The wrapper is not one of the FlashInfer that is known.
        """
        spec, arguments = memory.spec, memory.arguments(scores)
        self._wrapper, self._arrays = wrapper, arrays
        self._module_plan = wrapper._cached_module.plan
        self._workspaces = (
            wrapper._float_workspace_buffer,
            wrapper._int_workspace_buffer,
            wrapper._pin_memory_int_workspace_buffer,
        )
        self._graph: bool = wrapper.is_cuda_graph_enabled
        self._counts_queries = causal is not None
        self._tensor_cores = causal is not None or wrapper.use_tensor_cores
        # Of a graph, its tokens, however many of them a step has.
        self._tokens: int | None = wrapper._max_total_num_rows if causal is not None else None
        heads = spec.num_heads, spec.num_kv_heads, spec.block_size, self._graph
        window, dims = arguments["window_left"], (spec.head_dim, spec.head_dim)
        if self._tensor_cores:
            self._rest: tuple[Any, ...] = (*heads, *dims, bool(causal), window)
            if wrapper._backend == "fa2":
                # Parts of any length, cut where it pays; no kernel beside it; rows of any length.
                self._rest += (-1, False, 0, 0)
        else:
            kinds = (torch.empty(0, dtype=each) for each in (memory.q_dtype, memory.kv_dtype))
            self._rest = (*heads, window, scores.soft_cap or 0.0, *dims, *kinds)

    def agrees(self, queries: int) -> bool:
        """Whether the arrays' plan, for so many query tokens, is what the wrapper has just made."""
        return list(self._planned(queries)) == list(self._wrapper._plan_info)

    def plan(self, indices: torch.Tensor, queries: int) -> None:
        """Plan for the arrays; see :meth:`Wrapper.plan`.

        Args:
            indices: Pages of all rows, int32 on the device.
            queries: Query tokens of all rows.
        """
        wrapper, device = self._wrapper, self._arrays.device
        self._arrays.send()
        wrapper._plan_info = self._planned(queries)
        if self._counts_queries:
            wrapper._qo_indptr_last = queries
        if not self._graph:
            wrapper._qo_indptr_buf = device.query_start
            wrapper._paged_kv_indptr_buf = device.indptr
            wrapper._paged_kv_last_page_len_buf = device.last_page_len
            wrapper._paged_kv_indices_buf = indices

    def _planned(self, queries: int) -> Any:
        host = self._arrays.host
        rows = len(host.kv_length)
        if not self._tensor_cores:
            return self._module_plan(*self._workspaces, host.indptr, rows, *self._rest)
        arrays = host.query_start, host.indptr, host.kv_length
        tokens = self._tokens or queries
        return self._module_plan(*self._workspaces, *arrays, tokens, rows, *self._rest)


def native_plan(native: Callable[[], NativePlan], queries: int) -> NativePlan | None:
    """The native plan of a wrapper that has just planned for so many query tokens.

    None where it does not plan as the wrapper does, which is logged: that goes on by itself.
    """
    try:
        made = native()
        if made.agrees(queries):
            return made
        why = "its plans differ"
    except Exception as error:  # noqa: BLE001 - whatever it is, the wrapper plans by itself
        why = f"{type(error).__name__}: {error}"
    logger.warning("FlashInfer's planner is not that of 0.7.2, steps are planned slowly: %s", why)
    return None
