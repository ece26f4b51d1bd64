"""Where models come from: built here (`tiny`), converted once (`smollm2`), read from a folder."""
