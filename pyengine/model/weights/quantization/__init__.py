"""How files store quantized weights: one file for each family of formats."""
