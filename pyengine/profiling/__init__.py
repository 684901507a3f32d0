"""``pyengine profile``: run a workload, watch the engine meanwhile, and report where the time went.

::

    workload, schemas ─► profile ─► observe ─► report ─► table, page, perfetto, JSON
"""
