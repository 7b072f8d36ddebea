"""What the developers run: a browser for the tests, pictures for the docs."""
