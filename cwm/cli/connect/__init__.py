"""``cwm connect``: prints, writes and checks the configuration of clients for both faces of a gateway."""
