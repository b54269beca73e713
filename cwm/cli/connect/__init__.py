"""``cwm connect``: the configuration of clients for both faces of a gateway."""
