"""This package audits a client's own update before it leaves, whatever framework sends it."""
