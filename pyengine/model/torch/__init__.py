"""The runner of torch devices: CUDA GPUs, and the CPU in tests and with several ranks.

::

    start/       before requests: models loaded, memory measured, first steps computed
    draft.py     the draft model, which fills in drafts on the device
    runner.py    launches and samples steps: what the scheduler calls
    step/        a step in flight, and the work that is queued for it
    outputs/     what comes of hidden states: tokens, log-probabilities, vectors
    model.py     a model with its weights, KV cache and buffers
    layers/      the parts that architectures are built of
    attention/   paged attention: FlashInfer, Triton, torch
    device/      the stream, its clock, graphs and memory, operations, a step's buffers

Imports go down this list.
"""
