"""Stages 7 and 8: error rates of speakers and words, and the search for the best postprocessing."""
