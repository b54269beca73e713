"""Token counting with a BPE vocabulary."""
