"""Sessions: opening, ending and the salt scope of each."""
