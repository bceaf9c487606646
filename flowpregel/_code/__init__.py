"""What the code of a function means: a digest that survives every edit that changes
nothing.
"""
