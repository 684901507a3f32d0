import os

# As load_runner does, but the tests import torch before it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
