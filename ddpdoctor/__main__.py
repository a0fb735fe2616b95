"""`python -m ddpdoctor`."""

import sys

if __name__ == "__main__":
    if not sys.flags.isolated and not getattr(sys.flags, "safe_path", False):
        # Python put the working folder there, and a random.py in it would be ours. The rest of our package is found by itself.
        del sys.path[0]

    from ddpdoctor.cli.main import main

    main()
