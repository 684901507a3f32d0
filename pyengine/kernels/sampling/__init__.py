"""From a row of logits to its token: masks, penalties, rules, the draw, and what is told of it."""
