"""Access to the endpoint: who may use it, and how much."""
