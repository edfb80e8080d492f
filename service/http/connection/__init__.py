"""One HTTP/1.1 connection: `protocol` reads requests and closes it, the others are its parts."""
