"""``serve --replicas``: several engines on one machine behind one router."""
