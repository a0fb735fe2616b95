"""Runs in the target Python: one host's ranks of the smoke training, or one rank that a launcher has started.

    python start.py ORDER

ORDER is a JSON object, see ddpdoctor_smoke/orders.py. Ranks that are forked or spawned run this file once more, under
another name, so that it does nothing but call.
"""

import os
import sys

if __name__ == "__main__":
    before = set(sys.modules)
    # A training script doesn't see this file's folder, and nothing in there may stand in for a module of the library.
    here = os.path.dirname(os.path.abspath(__file__))
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    sys.path.append(here)

    from ddpdoctor_smoke.engine import main

    main(before)
