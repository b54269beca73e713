"""`cwm up`: local engines that CWM starts, watches and stops."""
