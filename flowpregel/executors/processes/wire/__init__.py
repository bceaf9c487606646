"""The messages that cross the link of a worker; both ends import them."""
