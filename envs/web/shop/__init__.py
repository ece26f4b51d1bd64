"""`web/shop-v0`: a small shop, its catalogue, its pages and its tasks."""
