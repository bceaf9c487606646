"""Where tasks run: inline, OS threads, worker processes, an event loop, any executor."""
