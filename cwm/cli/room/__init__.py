"""``cwm room``: makes room in the tiers, and tells how it goes."""
