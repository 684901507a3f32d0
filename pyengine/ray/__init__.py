"""pyengine as a Ray Serve application: replicas over a cluster, behind Ray's ingress.

::

    serve run my_app:app          # my_app.py: app = build_app(EngineConfig(...), num_replicas=4)

::

  clients ──► Ray's proxy ──► Ingress ──► request router ──► EngineReplica 0, 1, ...
                              (HTTP)      (by prefix)        (an AsyncEngine each)

Needs ``pyengine-llm[ray]``.
"""

from pyengine.ray.application import build_app

__all__ = ["build_app"]
