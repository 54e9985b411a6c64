"""Is the installed package complete? Run outside of the repository: python installed_wheel.py SCAN.JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import attnscope

package = Path(attnscope.__file__).parent
if "site-packages" not in package.parts:
    sys.exit(f"attnscope is imported from {package}, not from an installed wheel")
scan = json.loads(Path(sys.argv[1]).read_text("utf-8"))
if len(scan["heads"]) != 36:
    sys.exit(f"the scan of the embedded model has {len(scan['heads'])} heads, not 36")
if not Path("run/report.html").is_file():
    sys.exit("the scan wrote no report")
for name in ("py.typed", "sample/README.md"):
    if not (package / name).is_file():
        sys.exit(f"the wheel has no {name}")
print(f"attnscope {attnscope.__version__}: the wheel works in an empty environment")
