"""The policies that exist only to be compared with."""
