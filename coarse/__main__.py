"""`python -m coarse`, equivalent to the command `coarse`."""

from coarse.cli.app import main

if __name__ == "__main__":
    main()
