"""`python -m ddpdoctor`."""

from ddpdoctor.cli.main import main

if __name__ == "__main__":
    main()
