"""GGUF, the files of llama.cpp: header, blocks of quantized numbers, configuration, tokenizer."""
