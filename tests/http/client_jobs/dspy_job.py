"""DSPy: a signature, answered in its own format."""

import sys

import dspy

url, model = sys.argv[1:]
dspy.configure(lm=dspy.LM(f"openai/{model}", api_base=f"{url}/v1", api_key="none", cache=False))
assert dspy.Predict("question -> answer")(question="Rain in Paris?").answer == "It is dry."
