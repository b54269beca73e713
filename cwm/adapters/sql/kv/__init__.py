"""What was measured of engines and of the reuse of KV: noise, speeds, sums of turns."""
