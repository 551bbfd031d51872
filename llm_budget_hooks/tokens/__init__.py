"""How many tokens a prompt can have, and about how many a text has: without a network, a framework or a wait."""
