"""Model cards and the small network that comes with the installation: data only, read with importlib.resources."""
