"""``python -m redfuser`` is the command ``redfuser``."""

from redfuser.cli.main import main

if __name__ == "__main__":
    main()
