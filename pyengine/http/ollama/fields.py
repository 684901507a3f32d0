"""The fields that Ollama's requests may have beside those that their types honour."""

from pyengine.http.fields.effects import Table, alias, hint, refused
from pyengine.http.ollama import schema as ollama

_MODEL = alias("model", "name")
_VECTORS = _MODEL | hint("keep_alive options")

FIELDS: Table = {
    ollama.OllamaRequest: {
        **_MODEL,
        **refused("logprobs", False),
        **hint("truncate shift"),
        **refused("top_logprobs", 0),
        **refused("images", []),
    },
    ollama.OllamaGenerateRequest: refused("suffix template", "") | refused("context", []),
    ollama.OllamaEmbedRequest: _VECTORS,
    ollama.OllamaEmbeddingsRequest: _VECTORS,
    ollama.OllamaShowRequest: {
        **_MODEL,
        **refused("system template", ""),
        **refused("options", {}),
        **hint("verbose"),
    },
    ollama.OllamaPullRequest: _MODEL | hint("insecure"),
    ollama.OllamaMessage: refused("images", []),
    ollama.OllamaCall: hint("type"),
    ollama.OllamaFunction: hint("index"),
    ollama.OllamaOptions: {
        **refused("penalize_newline", True),
        **hint("num_ctx num_batch num_gpu main_gpu low_vram vocab_only use_mmap use_mlock"),
        **hint("num_thread numa f16_kv logits_all num_keep"),
    },
}
