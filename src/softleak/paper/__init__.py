"""The paper's own room: its algorithms, tables, figures, networks and data sets.

Nothing but the command line imports it.
"""
