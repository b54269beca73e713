"""What the cheapest bad request of one tenant costs another: ``cwm bench faults --hostile``."""
