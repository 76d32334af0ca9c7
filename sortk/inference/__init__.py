"""From a trained model to its results: posteriors, segments, words."""
