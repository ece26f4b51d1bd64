"""Where models come from: built here (`tiny`), converted once (`smollm2`), or read from a folder."""
