"""One file of routes per thing that can be asked for. A body only translates: HTTP in, one call, HTTP out."""
