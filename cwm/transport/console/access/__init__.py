"""Who may see the console, and which forms are its own: sign-in, sign-out, the tenant that is shown."""
