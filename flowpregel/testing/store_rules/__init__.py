"""The rules of `flowpregel.testing.store_contract`, a file for each kind."""
