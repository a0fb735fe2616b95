"""`python -m ddpdoctor`."""

from ddpdoctor.cli.app import main

if __name__ == "__main__":
    main()
