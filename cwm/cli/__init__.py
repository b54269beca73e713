"""The command line. Commands contain no logic of their own."""
