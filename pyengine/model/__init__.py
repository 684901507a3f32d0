"""Model steps: one small interface (:mod:`pyengine.model.runner`) and the devices behind it."""
