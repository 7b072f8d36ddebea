"""A text classifier and one client's update, audited in one command."""
