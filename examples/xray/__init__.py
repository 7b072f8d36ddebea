"""Chest images with fourteen findings each: what one gradient of such a client gives away."""
