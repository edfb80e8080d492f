"""Side-by-side measurements on this machine; never imported by the product."""
