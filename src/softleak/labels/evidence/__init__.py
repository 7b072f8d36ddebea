"""What the other layers say about the scalar."""
