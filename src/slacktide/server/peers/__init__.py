"""Links to other servers (see ../README.md)."""
