"""`cwm audit`: verify and export the audit log."""
