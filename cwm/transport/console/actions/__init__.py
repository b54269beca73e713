"""Actions: each is confirmed on a page that says what will follow, then done by the service that the tools use."""
