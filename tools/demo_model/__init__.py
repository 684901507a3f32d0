"""How the demo model was made: its data, its training and its evaluation."""
