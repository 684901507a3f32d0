"""Who may use the endpoint, and how much."""
