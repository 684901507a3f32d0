"""Files of a model's folder, changed."""

import json
from pathlib import Path
from typing import Any


def edit_json(path: Path, **changes: Any) -> None:
    """Give the object in a JSON file other values, or further ones."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
