"""Whether torch is installed, asked without importing it."""

import importlib.util


def without_torch(setting: str, value: object, extra: str) -> str | None:
    """Says what to install where torch is not; None where it is."""
    if importlib.util.find_spec("torch") is not None:
        return None
    return (
        f"{setting!r} of {value} needs torch, which is not installed here: "
        f"pip install 'pyengine-llm[{extra}]'"
    )
