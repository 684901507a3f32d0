"""What a user sets: the configuration, its presets and the environment's variables."""
