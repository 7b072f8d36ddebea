"""§3: the soft label and the last-layer feature from one gradient."""
