"""The tests; a package so that `tests.support` can be imported from each of them."""
