"""What the GPU takes for each part of the work, beside its floor and its peers.

``python -m benches.gpu`` runs all parts; one file is one part and answers one question.
"""

import os

# As the engine sets it before it loads torch: here torch comes first.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
