"""`python -m ragbandit` is the command `ragbandit`."""

from ragbandit.workers.entry import main

if __name__ == "__main__":
    main()
