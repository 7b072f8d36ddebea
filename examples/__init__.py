"""Things to run and to start from."""
