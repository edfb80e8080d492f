"""HTTP around the routes: connections, bodies, error answers, request records, traces."""
