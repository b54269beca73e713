"""What CWM costs agents: first bytes and throughput on each protocol, and what a resumed conversation computes again."""
