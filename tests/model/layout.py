"""A stand-in for ``_core.StepLayout``: the same fields, one after another."""

FIELDS = (
    ("header", "int64", "header"),
    ("sample_position", "int64", "rows"),
    ("seed", "uint64", "rows"),
    ("token_ids", "int32", "tokens"),
    ("positions", "int32", "tokens"),
    ("slot_mapping", "int32", "tokens"),
    ("query_start", "int32", "rows+1"),
    ("kv_length", "int32", "rows"),
    ("page_indptr", "int32", "rows+1"),
    ("page_indices", "int32", "pages"),
    ("row_sequence", "int32", "rows"),
    ("sample_rows", "int32", "rows"),
    ("sample_sequence", "int32", "rows"),
    ("temperature", "float32", "rows"),
    ("top_k", "int32", "rows"),
    ("top_p", "float32", "rows"),
    ("min_p", "float32", "rows"),
    ("feed_token", "int32", "rows"),
    ("feed_sequence", "int32", "rows"),
)


class Layout:
    def __init__(self, max_tokens: int, max_rows: int, max_pages: int) -> None:
        counts = {
            "header": 16,
            "rows": max_rows,
            "rows+1": max_rows + 1,
            "tokens": max_tokens,
            "pages": max_pages,
        }
        self._fields: dict[str, tuple[str, int, int]] = {}
        offset = 0
        for name, dtype, size in FIELDS:
            self._fields[name] = (dtype, offset, counts[size])
            offset += counts[size] * (8 if dtype.endswith("64") else 4)
            offset = -(-offset // 64) * 64
        self.nbytes = offset

    def fields(self) -> dict[str, tuple[str, int, int]]:
        return self._fields
