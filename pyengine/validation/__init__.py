"""What values from outside must be, and what is said of those that are not."""
