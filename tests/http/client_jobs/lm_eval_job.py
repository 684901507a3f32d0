"""lm-eval: the log-likelihoods of texts behind others, written to stdout as JSON."""

import json
import sys

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

url, model, folder, pairs = sys.argv[1:]
client = LocalCompletionsAPI(
    base_url=f"{url}/v1/completions",
    model=model,
    tokenizer=folder,
    tokenizer_backend="huggingface",
    batch_size=2,
    num_concurrent=1,
)
asked = [
    Instance("loglikelihood", {}, tuple(pair), index)
    for index, pair in enumerate(json.loads(pairs))
]
print(json.dumps(client.loglikelihood(asked)))
