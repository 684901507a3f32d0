"""What the demo model is taught, one module for each kind of ability.

Every skill is a function from a random generator to one
:class:`~tools.demo_model.dialogue.Exchange`.
"""
