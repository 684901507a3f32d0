"""From a folder in Hugging Face format to the tensors of one rank."""
