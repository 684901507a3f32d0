"""docs/MODELS.md says what the code does: which families, compared with what, in which formats."""

import pytest
import transformers

from pyengine.chat.formats import FORMATS
from pyengine.model.architectures import ARCHITECTURES
from tests.model.families import ALL_PARTS, FAMILIES
from tools.docs.known_models import SERVED
from tools.docs.models import PAGE, compared, parts_of_model, refused, served

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


@pytest.mark.slow
def test_families_that_have_every_part_together_do() -> None:
    have = {name: set(parts_of_model(*model)) for name, model in FAMILIES.items()}
    assert set().union(*(have[name] for name in ALL_PARTS)) == set().union(*have.values())


def test_every_family_is_known_by_its_models() -> None:
    assert ARCHITECTURES.keys() == SERVED.keys(), "name its models in tools/docs/known_models.py"
    assert all(name in FORMATS for _, formats in SERVED.values() for name in formats)
