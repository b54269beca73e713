"""Redis or Valkey: the store that several gateways share."""
