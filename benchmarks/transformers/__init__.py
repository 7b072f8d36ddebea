"""What gradients of transformers give away: images and texts, in closed form."""
