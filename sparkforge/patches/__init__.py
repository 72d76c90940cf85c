"""Patch series: read, applied, checked, proved, edited and written back.

A series is `series` (file names in order), the mails it names and `tree` (the tree id that they lead to).
Git is the engine and is only asked for objects and exit statuses; what it says to people is never read.
"""
