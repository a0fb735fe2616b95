"""Runs from the command line."""

from tests.script_mutations.running import main

if __name__ == "__main__":
    main()
