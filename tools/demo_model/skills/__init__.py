"""Skills of the demo model, one module each.

Every skill is a function from a random generator to one
:class:`~tools.demo_model.dialogue.Exchange`.
"""
