"""The rules of `flowpregel.testing.saver_contract`, a file for each kind."""
