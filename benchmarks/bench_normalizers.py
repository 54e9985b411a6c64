"""Speed and error of the normalizers against torch.softmax and the entmax package, printed as one JSON object.

python benchmarks/bench_normalizers.py
"""

from __future__ import annotations

import json

from attnscope.bench.normalizers import measure

if __name__ == "__main__":
    print(json.dumps(measure()))
