"""`python -m ragbandit` is the command `ragbandit`."""

from ragbandit.workers.cli import main

if __name__ == "__main__":
    main()
