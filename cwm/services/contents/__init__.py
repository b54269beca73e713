"""Contents: the large values of shared context and results, stored once by digest."""
