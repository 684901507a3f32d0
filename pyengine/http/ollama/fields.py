"""The fields that Ollama's requests may have beside those that their types honour."""

from pyengine.http.fields.effects import alias, hint, refused
from pyengine.http.fields.policy import Refused, Table
from pyengine.http.fields.servers import LLAMA_CPP
from pyengine.http.ollama import schema as ollama

OLLAMA = {
    **alias(name="model"),
    **refused("logprobs", False),
    **hint("truncate shift"),
    **refused("top_logprobs", 0),
    **refused("images", []),
}
OLLAMA_VECTORS = alias(name="model") | hint("keep_alive options")

FIELDS: Table = {
    ollama.OllamaRequest: OLLAMA,
    ollama.OllamaGenerateRequest: refused("suffix template", "") | refused("context", []),
    ollama.OllamaEmbedRequest: OLLAMA_VECTORS,
    ollama.OllamaEmbeddingsRequest: OLLAMA_VECTORS,
    ollama.OllamaShowRequest: {
        **alias(name="model"),
        **refused("system template", ""),
        **refused("options", {}),
        **hint("verbose"),
    },
    ollama.OllamaPullRequest: alias(name="model") | hint("insecure"),
    ollama.OllamaMessage: refused("images", []),
    ollama.OllamaCall: hint("type"),
    ollama.OllamaFunction: hint("index"),
    ollama.OllamaOptions: {
        **{name: effect for name, effect in LLAMA_CPP.items() if isinstance(effect, Refused)},
        **refused("penalize_newline", True),
        **hint("num_ctx num_batch num_gpu main_gpu low_vram vocab_only use_mmap use_mlock"),
        **hint("num_thread numa f16_kv logits_all num_keep mirostat_tau mirostat_eta"),
    },
}
