"""Labelled images in common formats, and the accuracy of a family's variants on them.

Folders and files are not trusted: they are read with bounds, no link leads out of the folder, and
errors name file and line or element.
"""
