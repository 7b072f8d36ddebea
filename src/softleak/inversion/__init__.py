"""§4.2 and beyond: the input itself, layer by layer, with its predicted error."""
