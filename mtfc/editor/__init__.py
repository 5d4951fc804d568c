"""The language server, and highlighting: what the compiler knows about a file, as editors ask for it."""
