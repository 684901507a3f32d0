"""GuideLLM: a benchmark of a few requests, all of which succeed."""

import json
import subprocess
import sys
from pathlib import Path

url, _model, folder, report = sys.argv[1:]
subprocess.run(
    [
        Path(sys.executable).with_name("guidellm"), "run",
        "--backend", f"kind=openai_http,target={url}",
        "--profile", "kind=concurrent,streams=2",
        "--constraint", "kind=max_requests,count=6",
        "--tokenizer", f"kind=huggingface_auto,model={folder}",
        "--data", "kind=synthetic_text,prompt_tokens=20,output_tokens=8",
        "--output", f"kind=json,path={report}",
        "--disable-console",
    ],
    check=True,
)  # fmt: skip
(benchmark,) = json.loads(Path(report).read_text())["benchmarks"]
requests = benchmark["metrics"]["request_totals"]
assert (requests["successful"], requests["errored"]) == (6, 0), requests
