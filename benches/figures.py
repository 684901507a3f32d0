"""A bench's figures as JSON: the option that asks for them, and where they go."""

import argparse
import json
from pathlib import Path


def json_option(parser: argparse.ArgumentParser) -> None:
    """Give ``parser`` the option ``--json``."""
    parser.add_argument(
        "--json", metavar="PATH", help="write the figures there; - is standard output"
    )


def write_json(figures: object, path: str | None) -> bool:
    """Write ``figures`` where ``--json`` said; whether standard output is left for a table."""
    text = json.dumps(figures, indent=2)
    if path == "-":
        print(text)
    elif path is not None:
        Path(path).write_text(text + "\n")
    return path != "-"
