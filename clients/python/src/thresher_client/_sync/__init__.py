"""The blocking client, which is generated from the asynchronous one, and its I/O, which is not."""
