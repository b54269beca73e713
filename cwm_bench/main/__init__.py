"""The main benchmark: pass-through, freeze, thaw, lists, memory, start."""
