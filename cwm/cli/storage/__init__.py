"""Commands that open the stores themselves, and need no running gateway."""
