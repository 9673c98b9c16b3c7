"""One file or folder for each form of 8-bit graph; `quantkit.quantization.convert` imports the one it needs."""
