"""Run the command line as ``python -m softleak``."""

from softleak.cli.app import app

if __name__ == "__main__":
    app(prog_name="softleak")
