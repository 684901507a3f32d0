"""Low-rank adapters of a model: read from PEFT's folders, fitted to its layers, kept loaded.

::

    folder ── peft.py ──► LowRanks, by module, and their digest
                             │ layers.py: which rows of which layers
                             ▼
                          LayerDelta of each layer ── the device's runner ──► a slot
                                                         ▲ loaded.py: which adapter has which slot

An adapter is its digest: the engine keeps, shares and separates adapters by it. Names are aliases
that only the callers' side knows (:mod:`pyengine.request.adapters`).
"""
