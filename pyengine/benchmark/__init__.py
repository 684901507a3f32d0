"""``pyengine bench``: offer load to a server over HTTP, and report what its clients saw.

::

    arrivals, or a trace ─► load ─► result (vLLM's keys) ─► table, plot, JSON
"""
