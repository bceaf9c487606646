"""What crosses the link between the coordinator and a worker; both ends import it."""
