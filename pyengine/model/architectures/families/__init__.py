"""The families of models: each file reads from a config.json what sets its models apart."""
