"""What is known of the programs that use a gateway: one file for each, and the list of all."""
