"""Look at runs from outside, while they run and after: nothing of the user's is imported or run."""
