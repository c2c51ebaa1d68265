"""What the deadlock experiment replays: pushes in every order through the real proxies (COARSE figure 10)."""
