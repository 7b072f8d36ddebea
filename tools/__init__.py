"""Tools of the developers: training, pictures, a browser for the tests."""
