"""Results as a picture, by matplotlib: the share of requests within a time, and the sweep."""

from pathlib import Path
from typing import Any

from pyengine.benchmark.load import Run
from pyengine.benchmark.result import MEASURES, measures
from pyengine.errors import ConfigError

_NAMES = {
    "ttft": "time to the first token, ms",
    "tpot": "time for each further token, ms",
    "itl": "time between texts, ms",
    "e2el": "time to the end, ms",
}


def plot(path: Path, results: list[dict[str, Any]], runs: list[list[Run]]) -> None:
    """Write the picture to ``path``; its ending says the format, such as .png or .svg.

    Raises:
        ConfigError: matplotlib is missing, or does not know the format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'pyengine-llm[plot]'") from None
    figure = Figure(figsize=(11, 8), layout="constrained")
    places = figure.subplots(2, 2).flat
    for axes, measure in zip(places, MEASURES, strict=True):
        for one, of_one in zip(results, runs, strict=True):
            done = [seen for run in of_one for seen in run.seen if seen.error is None]
            axes.ecdf(measures(done)[measure] or [0.0], label=_label(one))
        axes.set_xlabel(_NAMES[measure])
        axes.set_ylabel("share")
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center")
    try:
        figure.savefig(path)
    except (ValueError, OSError) as error:
        raise ConfigError(f"cannot write the plot: {error}") from None


def _label(one: dict[str, Any]) -> str:
    limit = one["max_concurrency"]
    at_a_time = "" if limit is None else f", {limit} at a time"
    return f"{one['url']}{at_a_time}"
