"""Exchange of weights with other libraries, for `mtfc export` and `mtfc import`."""
