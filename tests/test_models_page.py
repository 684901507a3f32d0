"""docs/MODELS.md says what the code does: which families, compared with what, in which formats."""

import transformers

from pyengine.chat.formats import FORMATS
from pyengine.model.architectures import ARCHITECTURES
from tools.docs.known_models import SERVED
from tools.docs.models import PAGE, compared, refused, served

WRITE = "run: .venv/bin/python -m tools.docs.models"


def test_the_page_is_what_is_made_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(served()), WRITE
    # Another transformers has other models.
    version = ".".join(transformers.__version__.split(".")[:2])
    if f"Text models of transformers {version} " in text:
        assert text.endswith(refused()), WRITE


def test_every_family_is_compared_with_transformers() -> None:
    assert ARCHITECTURES.keys() <= compared().keys()


def test_every_family_is_known_by_its_models() -> None:
    assert ARCHITECTURES.keys() == SERVED.keys(), "name its models in tools/docs/known_models.py"
    assert all(name in FORMATS for _, formats in SERVED.values() for name in formats)
