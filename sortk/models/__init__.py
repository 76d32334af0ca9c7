"""Pure torch: no paths, no files. Reads in the order of the data: features, fastconformer, transformer, sortformer."""
