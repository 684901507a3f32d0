"""The configuration, its presets and the environment variables."""
