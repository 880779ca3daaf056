"""The asynchronous client, from which the blocking one is generated, and its I/O."""
