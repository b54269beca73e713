"""How turns are stored: the ids and messages of a path through the tree, packed, sealed, and removed."""
