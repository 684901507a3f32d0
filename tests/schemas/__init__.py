"""JSON Schemas in the manner of those that real services publish, by name.

Strings and lists are bounded in most, as a small model at temperature 1 does not tire of them.
"""

from typing import Any

from tests.schemas.apis import APIS
from tests.schemas.documents import DOCUMENTS
from tests.schemas.keywords import KEYWORDS
from tests.schemas.typed import TYPED

SCHEMAS: dict[str, dict[str, Any]] = {**APIS, **DOCUMENTS, **KEYWORDS, **TYPED}
