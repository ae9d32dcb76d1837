"""Commands of mmee_solver: they parse, call the library and print."""
