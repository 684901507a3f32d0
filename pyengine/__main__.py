"""``python -m pyengine``: the command line."""

from pyengine.cli import main

if __name__ == "__main__":
    main(prog_name="pyengine")
