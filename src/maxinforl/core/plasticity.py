"""Keeping networks plastic: dormant neurons and what to do about them (comes with the pixel agents)."""
