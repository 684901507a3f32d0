"""Model steps: the runners behind one interface, and what they are made of."""
