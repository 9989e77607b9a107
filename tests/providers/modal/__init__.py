"""Modal, through its SDK and a server of the tests' own."""
