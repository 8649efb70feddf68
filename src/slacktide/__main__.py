"""`python -m slacktide` is the `slacktide` program."""

from slacktide.cli.main import main

if __name__ == "__main__":
    main()
