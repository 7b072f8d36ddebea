"""What the gradients of other layers say about the scalar."""
