"""How flowpregel works with others."""
