"""What every runtime and every deployment does the same: one table of cases for all of them."""
