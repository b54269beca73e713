"""What every command prints with: streams, flags, errors, and the wording of figures."""
