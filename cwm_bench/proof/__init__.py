"""``cwm bench proof``: wrong KV planted above the seal, and right KV, alone and in company, and what thaws say of them."""
