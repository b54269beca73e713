"""Faces: a folder per protocol; unpack, call a service, render."""
