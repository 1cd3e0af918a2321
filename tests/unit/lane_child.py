"""A child that answers, crashes or hangs by the name it is given."""

import json
import os
import sys
import time

for name in sys.stdin.read().splitlines():
    sys.stdout.write(f"begin {name}\n")
    sys.stdout.flush()
    if name.startswith("crash"):
        os.abort()
    if name.startswith("hang"):
        time.sleep(60)
    sys.stdout.write(json.dumps({"program": name, "well": True, "verify": os.environ.get("REDFUSER_VERIFY")}) + "\n")
    sys.stdout.flush()
