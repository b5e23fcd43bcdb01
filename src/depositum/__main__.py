"""`python -m depositum` (and `torchrun -m depositum`) is the command line."""

from depositum.cli import main

if __name__ == "__main__":
    main()
